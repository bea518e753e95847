"""A variant on its way to a node's cache: whole, checked by hash, safe against two writers and a killed one."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.artifacts import store
from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.errors import ArtifactCorrupt


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(chunk: object) -> object:
    return chunk


@pytest.fixture
def shipment(classifier_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> store.Shipment:
    monkeypatch.setattr(store, "CHUNK_BYTES", 1000)  # many chunks from a tiny model
    return store.ship(open_bundle(str(classifier_artifact)), "cpu-fp32", same)


def test_a_node_gets_the_same_bytes(shipment: store.Shipment, classifier_artifact: Path, tmp_path: Path) -> None:
    folder = store.unpack(shipment, np.asarray, tmp_path)
    assert all(chunk.dtype == np.uint8 for file in shipment.files for chunk in file.chunks)
    assert max(len(file.chunks) for file in shipment.files) > 1
    arrived = bytes_of(folder)
    assert set(arrived) == {"tokenizer.json", "cpu-fp32/model.onnx"}
    assert all(arrived[name] == (classifier_artifact / name).read_bytes() for name in arrived)


def test_a_second_worker_finds_the_folder_and_fetches_nothing(shipment: store.Shipment, tmp_path: Path) -> None:
    folder = store.unpack(shipment, np.asarray, tmp_path)

    def no_fetch(chunk: object) -> np.ndarray:
        raise AssertionError("fetched again")

    assert store.unpack(shipment, no_fetch, tmp_path) == folder


@pytest.mark.parametrize("name", ["tokenizer.json", "cpu-fp32/model.onnx"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_cache_is_written_again(shipment: store.Shipment, tmp_path: Path, name: str, damage: str) -> None:
    folder = store.unpack(shipment, np.asarray, tmp_path)
    before = bytes_of(folder)
    victim = folder / name
    raw = bytearray(victim.read_bytes())
    raw[len(raw) // 2] ^= 1
    victim.write_bytes(bytes(raw) if damage == "flip" else bytes(raw[:-1]))
    if damage == "remove":
        victim.unlink()
    assert bytes_of(store.unpack(shipment, np.asarray, tmp_path)) == before


def test_a_killed_writer_leaves_no_half_folder(shipment: store.Shipment, tmp_path: Path) -> None:
    calls = 0

    def dies(chunk: object) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return np.asarray(chunk)

    with pytest.raises(KeyboardInterrupt):
        store.unpack(shipment, dies, tmp_path)
    folder = store.unpack(shipment, np.asarray, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [folder.name]


def test_two_writers_at_once(shipment: store.Shipment, tmp_path: Path) -> None:
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(store.unpack(shipment, np.asarray, tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4 and len(set(folders)) == 1
    assert all(store._matches(folder, shipment) for folder in folders)


def test_a_chunk_that_changed_on_the_way_is_an_error(shipment: store.Shipment, tmp_path: Path) -> None:
    def damages(chunk: object) -> np.ndarray:
        return np.asarray(chunk) ^ 1

    with pytest.raises(ArtifactCorrupt, match=r"tokenizer\.json"):
        store.unpack(shipment, damages, tmp_path)


def test_a_damaged_artifact_is_not_shipped(classifier_artifact: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "artifact"
    shutil.copytree(classifier_artifact, copy)
    graph = copy / "cpu-fp32" / "model.onnx"
    raw = bytearray(graph.read_bytes())
    raw[100] ^= 1
    graph.write_bytes(bytes(raw))
    with pytest.raises(ArtifactCorrupt, match=r"model\.onnx"):
        store.ship(open_bundle(str(copy)), "cpu-fp32", same)
