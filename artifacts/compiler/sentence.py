"""What the files of sentence-transformers say: how token vectors become one embedding.

Formats: https://github.com/UKPLab/sentence-transformers (``modules.json``, ``1_Pooling/config.json``,
``sentence_bert_config.json``, ``config_sentence_transformers.json``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import CompileError, UsageError

Pooling = Literal["mean", "cls", "max"]
_SUPPORTED = ("Transformer", "Pooling", "Normalize")
_MODES: dict[str, Pooling] = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}


@dataclass(frozen=True)
class Sentence:
    """``folder`` holds the transformer itself; ``max_length`` counts tokens, special ones included."""

    folder: Path
    pooling: Pooling = "mean"
    normalize: bool = False
    max_length: int | None = None
    lower: bool = False
    warnings: tuple[str, ...] = ()


def read_sentence_files(folder: Path) -> Sentence:
    """Without the files: mean pooling, not normalized, and a warning.

    Raises UsageError for modules and poolings that an artifact can't express, CompileError for broken files.
    """
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return Sentence(folder, warnings=("no sentence-transformers files: mean pooling, not normalized",))
    listed = _read(modules_file, list)
    _refuse_unsupported([_kind(module) for module in listed])
    modules = {_kind(module): folder / str(module.get("path", "")) for module in listed}
    transformer = modules["Transformer"]
    options = _read(transformer / "sentence_bert_config.json", dict)
    return Sentence(
        folder=transformer,
        pooling=_pooling(modules.get("Pooling")),
        normalize="Normalize" in modules,
        max_length=options.get("max_seq_length"),
        lower=bool(options.get("do_lower_case", False)),
        warnings=_prompt_warnings(folder),
    )


def transformer_folder(folder: Path) -> Path:
    """Where the model's own config.json lies: older sentence-transformers models keep it in ``0_Transformer``."""
    return folder if (folder / "config.json").is_file() else read_sentence_files(folder).folder


def _kind(module: dict[str, Any]) -> str:
    return str(module.get("type", "")).rsplit(".", 1)[-1]


def _refuse_unsupported(kinds: list[str]) -> None:
    unknown = [kind for kind in kinds if kind not in _SUPPORTED]
    if unknown:
        hint = f"supported: {', '.join(_SUPPORTED)}"
        raise UsageError(f"sentence-transformers modules that can't be compiled: {', '.join(unknown)}", hint)
    if kinds not in (["Transformer"], ["Transformer", "Pooling"], list(_SUPPORTED)):
        raise UsageError(f"sentence-transformers modules in an unknown order: {', '.join(kinds)}")


def _pooling(folder: Path | None) -> Pooling:
    """Also the newer form ``{"pooling_mode": "mean"}``. Several modes at once would be concatenated: refused."""
    config = {} if folder is None else _read(folder / "config.json", dict)
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on]
    named = config.get("pooling_mode")
    modes += named if isinstance(named, list) else [named] if named else []
    found = [_MODES.get(mode, mode) for mode in modes]
    if not found:
        return "mean"
    for known in _MODES.values():
        if found == [known]:
            return known
    raise UsageError(f"unsupported pooling: {' + '.join(found)}", f"supported: {', '.join(_MODES.values())}")


def _prompt_warnings(folder: Path) -> tuple[str, ...]:
    config = _read(folder / "config_sentence_transformers.json", dict)
    name = config.get("default_prompt_name")
    if not name:
        return ()
    prompt = config.get("prompts", {}).get(name, name)
    return (f"the model's default prompt is not added to texts, put it into the job's template: {prompt!r}",)


def _read(path: Path, kind: type[Any]) -> Any:
    """The JSON in ``path``, an empty ``kind`` where there is no such file."""
    if not path.is_file():
        return kind()
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CompileError(f"{path.name} is not JSON: {path}: {error}") from error
    if not isinstance(value, kind):
        raise CompileError(f"{path.name} does not hold a JSON {kind.__name__}: {path}")
    return value
