"""Opening a sealed artifact, reading its files with their hashes checked, and sealing a new one.

``manifest.json`` is written last and in one canonical form, so any changed byte of it is found: in a value by the seal,
in the layout by comparing with that form. Hashes are taken over the JSON as it lies there, not over this version's
model of it, so fields that a later version adds with a default do not break old artifacts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NoReturn

from pydantic import ValidationError

from .errors import ArtifactCorrupt, ArtifactNotFound, TransientError, UsageError
from .hardware import find_variant
from .manifest import FORMAT, MANIFEST_NAME, Content, FileHash, Manifest, Report, Variant, hash_of
from .storage import Folder

TOKENIZER_NAME = "tokenizer.json"
CHUNK_BYTES = 8 << 20
_AGAIN = "copy the artifact again, or compile it again"


@dataclass(frozen=True)
class Bundle:
    """An artifact whose manifest was checked; its files are checked as they are read."""

    folder: Folder
    manifest: Manifest

    @property
    def content(self) -> Content:
        return self.manifest.content

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def model(self) -> str:
        """``name@digest`` with twelve digits."""
        return self.manifest.model

    def variant(self, name: str) -> Variant:
        """Raises ArtifactNotFound, naming the variants that are there."""
        return find_variant(self.content.variants, name)

    def files_of(self, variant: str) -> list[FileHash]:
        """What a worker needs of one variant: the tokenizer, the graph, its external data."""
        return [self._file(path) for path in (TOKENIZER_NAME, *self.variant(variant).files)]

    def read(self, path: str) -> bytes:
        """One whole file of the bundle. Raises ArtifactCorrupt."""
        return b"".join(self.chunks(path))

    def chunks(self, path: str, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The file in pieces of ``size`` bytes; its hash is known, and ArtifactCorrupt raised, after the last one."""
        expected = self._file(path)
        found, size_bytes = hashlib.sha256(), 0
        with self._open(path) as file:
            while block := file.read(size):
                found.update(block)
                size_bytes += len(block)
                yield block
        if (found.hexdigest(), size_bytes) != (expected.sha256, expected.size_bytes):
            told = f"expected {expected.sha256} ({expected.size_bytes} bytes)"
            raise _corrupt(f"{path} {told}, found {found.hexdigest()} ({size_bytes} bytes)", self.folder.url)

    def verify(self) -> None:
        """Reads every file. Raises ArtifactCorrupt naming the first that is missing or changed."""
        for file in self.content.files:
            for _ in self.chunks(file.path):
                pass

    def _file(self, path: str) -> FileHash:
        for file in self.content.files:
            if file.path == path:
                return file
        raise _corrupt(f"no hash for {path}", self.folder.url)

    @contextmanager
    def _open(self, path: str) -> Iterator[BinaryIO]:
        with _storage_errors(self.folder.url):
            try:
                file = self.folder.open(path)
            except FileNotFoundError as error:
                raise _corrupt(f"{path} is missing", self.folder.url) from error
            with file:
                yield file


def open_bundle(url: str, options: Mapping[str, Any] | None = None) -> Bundle:
    """The artifact at a local folder or any fsspec URL, its manifest checked but none of its files read.

    Raises ArtifactNotFound where there is no manifest, ArtifactCorrupt where it is not what was sealed.
    """
    folder = Folder(url, options or {})
    with _storage_errors(url):
        raw = _read_manifest(folder)
    return Bundle(folder, _checked(raw, url))


def seal_bundle(folder: Path, content: Content, report: Report) -> Manifest:
    """Hashes all files below ``folder`` (``content.files`` is replaced), then writes ``manifest.json``, atomically."""
    content = content.model_copy(update={"files": hash_files(folder)})
    present = {file.path for file in content.files}
    needed = {TOKENIZER_NAME, *(path for variant in content.variants for path in variant.files)}
    if not needed <= present:
        raise _corrupt(f"{min(needed - present)} is missing", str(folder))
    return write_manifest(folder, content, report)


def write_manifest(folder: Path, content: Content, report: Report) -> Manifest:
    """Seals files that were hashed before: ``content`` holds their hashes."""
    manifest = Manifest.of(content, report)
    Folder(str(folder)).write(MANIFEST_NAME, _encoded(manifest.model_dump(mode="json")))
    return manifest


def hash_files(folder: Path) -> tuple[FileHash, ...]:
    """Every file below ``folder`` but the manifest, sorted by path."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    paths.pop(MANIFEST_NAME, None)
    return tuple(_hash_file(name, path) for name, path in sorted(paths.items()))


def _hash_file(name: str, path: Path) -> FileHash:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileHash(path=name, sha256=digest, size_bytes=path.stat().st_size)


def _read_manifest(folder: Folder) -> bytes:
    try:
        return folder.read(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ArtifactNotFound(f"no artifact there: {folder.url}", _not_found_hint(folder)) from error


def _not_found_hint(folder: Folder) -> str:
    if folder.exists("config.json"):
        return "this looks like a Hugging Face model: make an artifact of it with `headrace compile MODEL -o ARTIFACT`"
    return "an artifact is a folder with a manifest.json, made by `headrace compile MODEL -o ARTIFACT`"


def _checked(raw: bytes, url: str) -> Manifest:
    """``raw`` as a manifest; raises ArtifactCorrupt unless it is byte for byte what was sealed."""
    value = _parsed(raw, url)
    canonical = _canonical(value, url)
    _same(MANIFEST_NAME, hashlib.sha256(canonical).hexdigest(), hashlib.sha256(raw).hexdigest(), url)
    try:
        content, report, digest, seal = value["content"], value["report"], value["digest"], value["seal"]
        if content["format"] != FORMAT:
            _unknown_format(content["format"], url)
    except (TypeError, KeyError) as error:
        raise _corrupt(f"{MANIFEST_NAME} lacks {error}", url) from error
    _same(f"the seal of {MANIFEST_NAME}", seal, hash_of({"content": content, "report": report}), url)
    _same(f"the digest in {MANIFEST_NAME}", digest, hash_of(content), url)
    try:
        manifest = Manifest.model_validate(value)
    except ValidationError as error:
        raise _corrupt(f"{MANIFEST_NAME} has unknown content, {error.errors()[0]['loc']}", url) from error
    _inside(manifest.content, url)
    return manifest


def _parsed(raw: bytes, url: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError as error:  # bad UTF-8 is one too
        raise _corrupt(f"{MANIFEST_NAME} is not JSON, {error}", url) from error
    if not isinstance(value, dict):
        raise _corrupt(f"{MANIFEST_NAME} is not an object", url)
    return value


def _canonical(value: dict[str, Any], url: str) -> bytes:
    try:
        return _encoded(value)
    except ValueError as error:  # NaN, half a surrogate pair: never written by us
        raise _corrupt(f"{MANIFEST_NAME} holds what no manifest does, {error}", url) from error


def _unknown_format(found: object, url: str) -> NoReturn:
    message = f"unknown artifact format in {MANIFEST_NAME}: {url}: expected {FORMAT}, found {found!r}"
    raise ArtifactCorrupt(message, "it may come from a newer headrace: upgrade, or compile the model again")


def _same(what: str, expected: object, found: str, url: str) -> None:
    if expected != found:
        raise _corrupt(f"{what} expected {expected}, found {found}", url)


def _inside(content: Content, url: str) -> None:
    """A manifest is input: its paths must not lead out of the folder that it is copied to."""
    for file in content.files:
        path = PurePosixPath(file.path)
        if path.is_absolute() or ".." in path.parts or "\\" in file.path or ":" in file.path:
            raise _corrupt(f"{MANIFEST_NAME} names a file outside the artifact, {file.path}", url)


def _corrupt(what: str, url: str) -> ArtifactCorrupt:
    return ArtifactCorrupt(f"damaged artifact: {url}: {what}", _AGAIN)


def _encoded(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


@contextmanager
def _storage_errors(url: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UsageError(f"no support for this kind of URL: {url}", str(error)) from error
    except PermissionError as error:
        raise UsageError(f"no permission to read the artifact: {url}", str(error)) from error
    except OSError as error:
        raise TransientError(f"can't read the artifact: {url}: {error}") from error
    except ValueError as error:
        raise UsageError(f"can't read the artifact: {url}: {error}") from error
