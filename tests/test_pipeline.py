"""One shard from Parquet to a part: every row once, the same bytes each time, and whatever is bad set aside."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from runs import sentences
from shards import Bench, identity, lookup_artifact, open_scorer, piece, probabilities, shard, spec, write

from headrace.artifacts.bundle import open_bundle
from headrace.artifacts.errors import SourceChanged
from headrace.workers.footer import read_footer
from headrace.workers.pipeline import probe_rows
from headrace.workers.scorer import Scorer
from headrace.workers.shard import Counts, EmptyPolicy, Piece

COLORS = ("red", "green", "blue", "red blue", "green green blue", "red red red green")


@pytest.fixture(scope="module")
def lookup(tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    return open_scorer(lookup_artifact(tmp_path_factory.mktemp("lookup") / "artifact"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


def texts(path: Path, values: list[str | bytes | None], first_id: int = 0) -> Path:
    """A source file; bytes stand for a string column that is not UTF-8 everywhere."""
    raw = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary())
    body = pa.Array.from_buffers(pa.string(), len(values), raw.buffers())
    return write(path, pa.table({"id": pa.array(range(first_id, first_id + len(values))), "body": body}))


def colors(count: int) -> list[str | bytes | None]:
    return [COLORS[i % len(COLORS)] for i in range(count)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def test_answers_by_hand_in_input_order(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    path = texts(tmp_path / "a.parquet", colors(200))
    staged, found = bench.score(lookup, spec(), shard(piece(path, 10, 150)))
    assert found.schema.names == ["id", "source_row", "label", "score", "model", "n_tokens", "truncated"]
    assert found["id"].to_pylist() == found["source_row"].to_pylist() == list(range(10, 160))
    expected = [probabilities(COLORS[i % len(COLORS)]) for i in range(10, 160)]
    assert found["score"].to_pylist() == pytest.approx([max(row) for row in expected], abs=1e-6)
    assert found["label"].to_pylist() == [lookup.content.labels[int(np.argmax(row))] for row in expected]
    assert found["n_tokens"].to_pylist() == [len(COLORS[i % len(COLORS)].split()) + 2 for i in range(10, 160)]
    assert set(found["model"].to_pylist()) == {"model@0123456789ab"}
    assert staged.counts == Counts(150, 150, 0, 0)
    # six distinct texts in each of three windows (64, 64 and 22 rows)
    assert (staged.stats.unique_rows, staged.stats.tokens) == (18, 3 * (3 + 3 + 3 + 4 + 5 + 6))
    assert staged.size_bytes == bench.part(shard(piece(path))).stat().st_size
    assert staged.stats.timings.wall_s > 0
    assert bench.quarantined(shard(piece(path))) == []


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_bytes_do_not_depend_on_threads_workers_or_attempts(
    tmp_path: Path, classifier_artifact: Path, precision: str
) -> None:
    content = open_bundle(str(classifier_artifact)).content
    variant = next(v for v in content.variants if v.precision == precision)
    table = pa.table({"id": pa.array(range(700)), "body": sentences(700, seed=1)})
    work = shard(piece(write(tmp_path / "a.parquet", table, row_group_rows=90), 17, 600))
    digests = set()
    for name, threads in (("one", 1), ("two", 2), ("again", 1)):
        bench = Bench(tmp_path / name)
        scorer = open_scorer(classifier_artifact, variant.name, threads)
        scorer.score_window(sentences(5, seed=threads), "budget", 64)  # what a worker did before plays no part
        for _ in range(2):
            bench.score(scorer, spec(), work)
            digests.add(bench.digest(work))
    assert len(digests) == 1


def test_the_row_groups_of_the_source_play_no_part(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    answers = []
    for size in (33, 1000):
        table = pa.table({"id": pa.array(range(300)), "body": colors(300)})
        path = write(tmp_path / f"{size}.parquet", table, row_group_rows=size)
        answers.append(bench.score(lookup, spec(), shard(piece(path, 1, 290)))[1])
    assert answers[0].equals(answers[1])


def test_embeddings_can_be_joined_back(tmp_path: Path, bench: Bench, embedder_artifact: Path) -> None:
    bodies = [*sentences(90, seed=2), "", None]
    table = pa.table({"id": pa.array(range(92)), "body": pa.array(bodies, pa.string())})
    path = write(tmp_path / "a.parquet", table)
    _, found = bench.score(open_scorer(embedder_artifact), spec(), shard(piece(path)))
    assert found.schema.field("embedding").type == pa.list_(pa.float32(), 32)
    joined = duckdb.sql(
        f"select count(*), count(embedding), avg(list_sum(list_transform(embedding, lambda x: x * x))) "
        f"from '{path}' join '{bench.part(shard(piece(path)))}' using (id)"
    ).fetchall()
    assert joined[0][:2] == (92, 90)
    assert joined[0][2] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("empty", "counts", "scored"),
    [("null", Counts(5, 5, 0, 0), 2), ("score", Counts(5, 5, 0, 0), 5), ("quarantine", Counts(5, 2, 3, 0), 2)],
)
def test_empty_texts_are_policy(
    tmp_path: Path, bench: Bench, lookup: Scorer, empty: EmptyPolicy, counts: Counts, scored: int
) -> None:
    work = shard(piece(texts(tmp_path / "a.parquet", ["red", None, "", " \n", "blue"])))
    staged, found = bench.score(lookup, spec(empty=empty), work)
    assert staged.counts == counts
    assert len(found) == counts.rows_out
    assert found["score"].null_count == found["n_tokens"].null_count == counts.rows_out - scored
    bad = bench.quarantined(work)
    assert [(row.row, row.stage, row.reason) for row in bad] == (
        [(row, "text", "text is empty") for row in (1, 2, 3)] if empty == "quarantine" else []
    )
    if empty == "score":
        assert found["score"].to_pylist()[1:4] == pytest.approx([max(probabilities(""))] * 3, abs=1e-6)
    if empty == "null":
        assert found["truncated"].to_pylist() == [False] * 5
        assert found["label"].to_pylist()[1:4] == [None] * 3


@pytest.mark.parametrize("keep_text", [False, True])
def test_texts_that_are_not_utf8_are_quarantined(tmp_path: Path, bench: Bench, lookup: Scorer, keep_text: bool) -> None:
    path = texts(tmp_path / "a.parquet", ["red", b"\xff\xfered", "blue"], first_id=50)
    staged, found = bench.score(lookup, spec(keep_text=keep_text), shard(piece(path)))
    assert staged.counts == Counts(3, 2, 1, 0)
    assert staged.bad_rows == 1
    assert found["id"].to_pylist() == [50, 52]
    (bad,) = bench.quarantined(shard(piece(path)))
    assert (bad.file, bad.row, bad.stage, bad.reason) == (identity(path), 1, "text", "text is not UTF-8")
    assert bad.text_hash == sha(b"\xff\xfered")
    assert bad.text == ("\ufffd\ufffdred" if keep_text else None)


def test_kept_values_that_are_not_utf8_would_spoil_the_part_for_its_readers(
    tmp_path: Path, bench: Bench, lookup: Scorer
) -> None:
    raw = pa.array([b"x", b"\xff", b"y"])
    name = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    path = write(tmp_path / "a.parquet", pa.table({"name": name, "body": ["red", "green", "blue"]}))
    score = spec(keep=("name",), keep_types={"name": pa.string()})
    staged, _ = bench.score(lookup, score, shard(piece(path)))
    assert staged.counts == Counts(3, 2, 1, 0)
    (bad,) = bench.quarantined(shard(piece(path)))
    assert (bad.row, bad.stage, bad.reason, bad.text_hash) == (1, "read", "value is not UTF-8: name", sha(b"green"))
    assert duckdb.sql(f"select name from '{bench.part(shard(piece(path)))}'").fetchall() == [("x",), ("y",)]


def test_where_and_quarantine_add_up(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    values = ["red", b"\xff", None, "poison", b"\xfe", "blue", "nan"]
    path = texts(tmp_path / "a.parquet", values)
    score = spec(where=pc.field("id") != 4, where_columns=("id",), empty="quarantine")
    staged, found = bench.score(lookup, score, shard(piece(path)))
    assert staged.counts == Counts(rows_in=7, rows_out=2, quarantined=4, filtered=1)
    assert found["id"].to_pylist() == [0, 5]
    bad = bench.quarantined(shard(piece(path)))
    assert [(row.row, row.stage) for row in bad] == [(1, "text"), (2, "text"), (3, "infer"), (6, "infer")]
    assert duckdb.sql(f"select count(*) from '{path}' where id != 4").fetchall() == [(6,)]


def test_a_model_error_sends_the_shard_through_again_row_by_row(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    """The rows that do it are alone in quarantine; the others have the answers of mode ``row``."""
    good, poisoned = colors(300), colors(300)
    poisoned[150], poisoned[299] = "poison red", "red nan"
    work = shard(piece(texts(tmp_path / "poisoned.parquet", poisoned)))
    staged, found = bench.score(lookup, spec(), work)
    assert (staged.batching, staged.counts) == ("row", Counts(300, 298, 2, 0))
    bad = bench.quarantined(work)
    assert [(row.row, row.stage, row.text_hash) for row in bad] == [
        (150, "infer", sha(b"poison red")),
        (299, "infer", sha(b"red nan")),
    ]
    assert "out of data bounds" in bad[0].reason
    assert bad[1].reason == "the model gave numbers that are not finite"
    with bench.part(work).open("rb") as file:
        footer = read_footer(file)
    assert footer is not None
    assert footer.batching == "row"
    reference = shard(piece(texts(tmp_path / "good.parquet", good)))
    _, expected = bench.score(lookup, spec(batching="row"), reference)
    assert found.equals(expected.filter(pc.invert(pc.is_in(expected["id"], pa.array([150, 299])))))


@pytest.mark.parametrize("damage", ["cut", "column", "type"])
def test_a_bad_file_in_the_middle_is_as_if_it_were_not_there(
    tmp_path: Path, bench: Bench, lookup: Scorer, damage: str
) -> None:
    """Rows 100 to 200 of what would be one shard: the windows after it move up."""
    first, bad, last = (texts(tmp_path / f"{name}.parquet", colors(100), i * 100) for i, name in enumerate("abc"))
    rows = pq.read_table(bad)
    if damage == "cut":
        bad.write_bytes(bad.read_bytes()[:-30])
    elif damage == "column":
        pq.write_table(rows.drop_columns(["body"]), bad)
    else:
        pq.write_table(rows.set_column(0, "id", pa.array(["x"] * 100)), bad)
    work = shard(piece(first), Piece(identity(bad), 0, 100), piece(last))
    staged, found = bench.score(lookup, spec(), work)
    digest = bench.digest(work)
    assert [file.file.path for file in staged.bad_files] == [str(bad)]
    assert staged.bad_files[0].row is None
    assert staged.counts == Counts(200, 200, 0, 0)
    assert found["id"].to_pylist() == [*range(100), *range(200, 300)]
    bench.score(lookup, spec(), shard(piece(first), piece(last)))
    assert bench.digest(work) == digest


def test_a_bad_file_takes_its_failed_batches_along(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    """A poisoned row of a file that turns out to be cut does not leave the others in mode ``row``."""
    good = texts(tmp_path / "a.parquet", colors(70))
    table = pa.table({"id": pa.array(range(4000)), "body": ["poison", *np.resize(COLORS, 3999)]})
    bad = write(tmp_path / "b.parquet", table, row_group_rows=100)
    chunk = pq.read_metadata(bad).row_group(30).column(1)
    data = bytearray(bad.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = os.urandom(chunk.total_compressed_size)
    bad.write_bytes(data)
    staged, _ = bench.score(lookup, spec(), shard(piece(good), piece(bad)))
    assert (staged.batching, staged.counts.rows_in, len(staged.bad_files)) == ("budget", 70, 1)


def test_only_bad_files_leave_no_part(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"no Parquet")
    staged = bench.stage(lookup, spec(), shard(Piece(identity(path), 0, 9)))
    assert (staged.size_bytes, staged.counts, len(staged.bad_files)) == (0, Counts(), 1)
    assert not bench.publish(staged)
    assert bench.sink.list() == []


def test_no_rows_left_still_makes_a_part(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    path = texts(tmp_path / "a.parquet", colors(10))
    staged, found = bench.score(lookup, spec(where=pc.field("id") > 99, where_columns=("id",)), shard(piece(path)))
    assert staged.counts == Counts(10, 0, 0, 10)
    assert (len(found), found.schema.names[:2]) == (0, ["id", "source_row"])


def test_a_changed_file_stages_nothing(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    path = texts(tmp_path / "a.parquet", colors(10))
    work = shard(piece(path))
    texts(path, colors(11))
    with pytest.raises(SourceChanged) as caught:
        bench.stage(lookup, spec(), work)
    assert caught.value.path == str(path)
    assert bench.state.list() == []


def test_rows_that_killed_their_worker_are_set_aside(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    first, second = texts(tmp_path / "a.parquet", colors(50)), texts(tmp_path / "b.parquet", colors(50), 50)
    work = shard(piece(first, 10), piece(second))
    excluded = frozenset({(str(first), 12), (str(second), 3)})
    staged, found = bench.score(lookup, spec(), work, excluded=excluded)
    assert staged.counts == Counts(90, 88, 2, 0)
    assert sorted(set(range(10, 100)) - set(found["id"].to_pylist())) == [12, 53]
    bad = bench.quarantined(work)
    assert [(row.file.path, row.row, row.stage, row.reason) for row in bad] == [
        (str(first), 12, "infer", "killed its worker"),
        (str(second), 3, "infer", "killed its worker"),
    ]


@pytest.mark.parametrize(("first", "last", "rows"), [(0, 90, 90), (39, 41, 2), (0, 1, 1), (70, 90, 20), (40, 40, 0)])
def test_probing_scores_a_range_and_writes_nothing(
    tmp_path: Path, bench: Bench, lookup: Scorer, first: int, last: int, rows: int
) -> None:
    work = shard(
        piece(texts(tmp_path / "a.parquet", colors(50)), 10), piece(texts(tmp_path / "b.parquet", ["poison"] * 50))
    )
    assert probe_rows(work, bench.worker(spec()), lookup, first, last) == rows
    assert bench.sink.list() == bench.state.list() == []


def test_partitions_are_mirrored(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    path = texts(tmp_path / "in" / "month=04" / "a.parquet", colors(5))
    work = shard(piece(path), partition="month=04")
    score = spec(keep=("id", "month"), keep_types={"id": pa.int64(), "month": pa.string()})
    _, found = bench.score(lookup, score, work)
    assert found["month"].to_pylist() == ["04"] * 5
    assert [entry.key for entry in bench.sink.list()] == [f"month=04/part-{'0' * 20}.parquet"]


def test_footer_of_a_part(tmp_path: Path, bench: Bench, lookup: Scorer) -> None:
    work = shard(piece(texts(tmp_path / "a.parquet", [*colors(9), b"\xff"])))
    staged, _ = bench.score(lookup, spec(), work)
    with bench.part(work).open("rb") as file:
        footer = read_footer(file)
    assert footer is not None
    assert (footer.pieces, footer.counts) == (work.pieces, staged.counts)
    assert (footer.variant, footer.precision, footer.batching, footer.fingerprint) == (
        "cpu-fp32",
        "fp32",
        "budget",
        "f" * 64,
    )
    assert len(footer.artifact) == 64
