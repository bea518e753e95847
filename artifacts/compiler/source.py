"""Where a model comes from: a local folder or the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from .libraries import quiet

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CONFIG_FILES = ["*.json", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True)
class Source:
    folder: Path
    given: str  #: as the user wrote it
    name: str
    revision: str | None = None  #: the hub's commit


def fetch_source(model: str, revision: str | None = None) -> Source:
    """``model`` is a folder with a config.json or a hub id; a folder wins where both exist.

    Raises UsageError for a missing folder and for a hub model that can't be had (absent, private, offline).
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _local(folder, model, revision)
    if folder.exists():
        raise UsageError(f"a model is a folder or a hub id, this is a file: {model}")
    if not _HUB_ID.fullmatch(model):
        raise UsageError(
            f"no such model folder: {model}", "give a folder in Hugging Face format or a hub id, owner/name"
        )
    return _hub(model, revision)


def same_source(one: str, other: str) -> bool:
    """Whether both, as users write them, are one folder (seen from here) or one hub id."""
    if one == other:
        return True
    folders = [Path(given).expanduser() for given in (one, other)]
    return all(folder.is_dir() for folder in folders) and folders[0].resolve() == folders[1].resolve()


def _local(folder: Path, model: str, revision: str | None) -> Source:
    if revision is not None:
        raise UsageError(f"a revision is for models of the hub, this is a folder: {model}", "leave --revision out")
    has_config = (folder / "config.json").is_file() or (folder / "modules.json").is_file()
    if not has_config:
        hint = "a model folder in Hugging Face format holds config.json, weights and a tokenizer"
        raise UsageError(f"no config.json in the model folder: {model}", hint)
    return Source(folder, model, clean_name(folder.resolve().name))


def _hub(model: str, revision: str | None) -> Source:
    """Safetensors where the model has them; only a model without them costs the download of its pickled weights."""
    folder = _snapshot(model, revision, [*_CONFIG_FILES, "*.safetensors"])
    if not any(folder.rglob("*.safetensors")):
        folder = _snapshot(model, revision, [*_CONFIG_FILES, "*.bin"])
    return Source(folder, model, clean_name(model.rsplit("/", 1)[-1]), folder.name)


def _snapshot(model: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    ignored = ["onnx/*", "openvino/*", "*.onnx.json"]
    try:
        with quiet():
            return Path(snapshot_download(model, revision=revision, allow_patterns=patterns, ignore_patterns=ignored))
    except GatedRepoError as error:
        hint = "ask for access on the model's page, then log in with `hf auth login`"
        raise UsageError(f"the hub does not let you read this model: {model}", hint) from error
    except RevisionNotFoundError as error:
        raise UsageError(f"the model has no such revision: {model}: {revision}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        hint = "check the spelling; a private model needs `hf auth login`"
        raise UsageError(f"no such folder here and no such model on the hub: {model}", hint) from error
    except (LocalEntryNotFoundError, OSError) as error:
        hint = "check the network and HF_HUB_OFFLINE, or download the model and give its folder"
        raise UsageError(f"no such folder here, and the hub can't be reached: {model}", hint) from error


def clean_name(name: str) -> str:
    """``name`` as an artifact's name: letters, digits, dot, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"
