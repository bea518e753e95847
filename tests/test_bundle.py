"""Opening, reading and sealing artifacts: every changed byte must be found."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from pathlib import Path

import fsspec
import pytest

from headrace.artifacts.bundle import Bundle, open_bundle, seal_bundle
from headrace.artifacts.errors import ArtifactCorrupt, ArtifactNotFound, UsageError
from headrace.artifacts.manifest import FORMAT, Content, Manifest, Report, Variant

FILES = {
    "tokenizer.json": b'{"version": "1.0"}',
    "cpu-fp32/model.onnx": bytes(range(256)) * 40,
    "cpu-fp32/model.onnx_data": b"weights" * 999,
    "cpu-avx2-int8/model.onnx": b"int8 graph",
}


def variant(name: str, *files: str) -> Variant:
    target, _, precision = name.rpartition("-")
    return Variant(
        name=name, target=target, precision=precision, recipe="export", files=files, batch_tokens=512,
        batch_invariant=True,
    )  # fmt: skip


CONTENT = Content(
    name="tiny",
    task="text-classification",
    problem_type="single_label_classification",
    labels=("ja", "größer ≥"),
    max_length=12,
    variants=(
        variant("cpu-fp32", "cpu-fp32/model.onnx", "cpu-fp32/model.onnx_data"),
        variant("cpu-avx2-int8", "cpu-avx2-int8/model.onnx"),
    ),
    files=(),
)
REPORT = Report(source="tiny", checks={"cpu-fp32": {"probes": {"difference": 1.25e-7, "rows": 3.0}}}, warnings=("w",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / "artifact" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "artifact" / name).write_bytes(data)
    seal_bundle(tmp_path / "artifact", CONTENT, REPORT)
    return tmp_path / "artifact"


def read_all(folder: Path) -> None:
    open_bundle(str(folder)).verify()


def reseal(folder: Path, **changes: object) -> None:
    """Writes a manifest whose hashes are right but whose content was changed."""
    old = open_bundle(str(folder)).manifest
    manifest = Manifest.of(old.content.model_copy(update=changes), old.report)
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_bytes(f"{text}\n".encode())


def test_what_was_sealed_is_opened(folder: Path) -> None:
    bundle = open_bundle(str(folder))
    bundle.verify()
    assert bundle.content.labels == CONTENT.labels
    assert bundle.manifest.report == REPORT
    assert bundle.model == f"tiny@{bundle.digest[:12]}"
    assert {file.path: file.sha256 for file in bundle.content.files} == {
        name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()
    }


def test_files_of_a_variant(folder: Path) -> None:
    files = open_bundle(str(folder)).files_of("cpu-fp32")
    assert [file.path for file in files] == ["tokenizer.json", "cpu-fp32/model.onnx", "cpu-fp32/model.onnx_data"]
    assert [file.size_bytes for file in files] == [len(FILES[file.path]) for file in files]


def test_unknown_variant_lists_those_present(folder: Path) -> None:
    with pytest.raises(ArtifactNotFound) as absent:
        open_bundle(str(folder)).files_of("cpu-int4")
    assert absent.value.hint == "it has cpu-fp32, cpu-avx2-int8"


@pytest.mark.parametrize("path", FILES)
def test_chunks_are_the_file(folder: Path, path: str) -> None:
    bundle = open_bundle(str(folder))
    chunks = list(bundle.chunks(path, size=100))
    assert b"".join(chunks) == FILES[path] == bundle.read(path)
    assert all(len(chunk) == 100 for chunk in chunks[:-1])


@pytest.mark.parametrize("path", FILES)
def test_a_flipped_byte_of_a_file_is_found(folder: Path, path: str) -> None:
    file = folder / path
    for position in (0, len(FILES[path]) // 2, -1):
        data = bytearray(FILES[path])
        data[position] ^= 0x20
        file.write_bytes(data)
        with pytest.raises(ArtifactCorrupt) as found:
            read_all(folder)
        for told in (path, hashlib.sha256(FILES[path]).hexdigest(), hashlib.sha256(data).hexdigest()):
            assert told in found.value.message
        with pytest.raises(ArtifactCorrupt):
            open_bundle(str(folder)).read(path)


def test_every_flipped_byte_of_the_manifest_is_found(folder: Path) -> None:
    manifest = folder / "manifest.json"
    raw = manifest.read_bytes()
    for position in range(len(raw)):
        # 0x2a turns a line's end into a space: the values stay, the bytes do not.
        for mask in (0x01, 0x20, 0x2A):
            manifest.write_bytes(raw[:position] + bytes([raw[position] ^ mask]) + raw[position + 1 :])
            with pytest.raises(ArtifactCorrupt, match=r"manifest\.json"):
                open_bundle(str(folder))


@pytest.mark.parametrize(
    "change", [lambda b: b + b"x", lambda b: b[:-1], lambda _: b"", lambda b: b.replace(b" ", b"")]
)
def test_longer_shorter_or_reformatted(folder: Path, change: object) -> None:
    for name in ("manifest.json", "tokenizer.json"):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(change(data))  # type: ignore[operator]
        with pytest.raises(ArtifactCorrupt, match=name):
            read_all(folder)
        (folder / name).write_bytes(data)


def test_missing_file(folder: Path) -> None:
    (folder / "cpu-fp32/model.onnx_data").unlink()
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx_data is missing"):
        read_all(folder)


def test_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound, match="no artifact there"):
        open_bundle(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ArtifactNotFound) as absent:
        open_bundle(str(tmp_path))
    assert "Hugging Face" in (absent.value.hint or "")
    assert absent.value.exit_code == 2


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"content": {}}', '{"content": {"format": NaN}}', "\xff"])
def test_a_manifest_that_is_none(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(ArtifactCorrupt) as found:
        open_bundle(str(folder))
    assert found.value.exit_code == 1


def test_unknown_format(folder: Path) -> None:
    reseal(folder, format=FORMAT + 1)
    with pytest.raises(ArtifactCorrupt, match=f"unknown artifact format .* expected {FORMAT}, found {FORMAT + 1}"):
        open_bundle(str(folder))


def test_a_path_that_leads_out_is_refused(folder: Path) -> None:
    for path in ("../evil", "/etc/evil", "a/../../evil", "..\\evil"):
        shutil.copytree(folder, copy := folder.parent / uuid.uuid4().hex)
        files = open_bundle(str(copy)).content.files
        reseal(copy, files=(*files, files[0].model_copy(update={"path": path})))
        with pytest.raises(ArtifactCorrupt, match="outside the artifact"):
            open_bundle(str(copy))


def test_an_artifact_behind_a_url(folder: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/models/tiny"
    fsspec.filesystem("memory").put(str(folder), url, recursive=True)
    bundle = open_bundle(url)
    bundle.verify()
    assert isinstance(bundle, Bundle)
    assert bundle.digest == open_bundle(f"file://{folder}").digest == open_bundle(str(folder)).digest


def test_urls_that_nothing_reads() -> None:
    with pytest.raises(UsageError, match="s4://bucket/tiny"):
        open_bundle("s4://bucket/tiny")


def test_storage_options_are_not_shown(folder: Path) -> None:
    assert "sesame" not in repr(open_bundle(str(folder), {"auto_mkdir": "sesame"}))


def test_sealing_an_incomplete_folder(folder: Path) -> None:
    (folder / "cpu-avx2-int8/model.onnx").unlink()
    with pytest.raises(ArtifactCorrupt, match=r"cpu-avx2-int8/model\.onnx is missing"):
        seal_bundle(folder, CONTENT, REPORT)


def test_the_digest_is_of_the_content_alone(folder: Path) -> None:
    before = open_bundle(str(folder)).manifest
    after = seal_bundle(folder, CONTENT, Report(source="elsewhere"))
    assert after.digest == before.digest
    assert after.seal != before.seal
    (folder / "tokenizer.json").write_text("{}")
    assert seal_bundle(folder, CONTENT, REPORT).digest != before.digest
