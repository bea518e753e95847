"""Token ids as transformers' own tokenizer gives them, flat, and padded only in a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.artifacts.errors import ArtifactCorrupt, UsageError
from headrace.workers.tokenization import Tokenizer

TEXTS = ["the river", "", "a very long river and a lake " * 10, "x", "Wood, stone & iron!", "é ü 😀"]


@pytest.fixture(scope="module")
def tokenizer_json(tiny_classifier_model: Path) -> Path:
    return tiny_classifier_model / "tokenizer.json"


def test_ids_equal_those_of_transformers(tiny_classifier_model: Path, tokenizer_json: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tiny_classifier_model)(TEXTS, truncation=True, max_length=16)
    encoded = Tokenizer(tokenizer_json, 16).encode(TEXTS)
    rows = [encoded.ids[a:b].tolist() for a, b in zip(encoded.offsets, encoded.offsets[1:], strict=False)]
    assert rows == reference["input_ids"]
    assert encoded.lengths.tolist() == [len(row) for row in reference["input_ids"]]


def test_a_batch_equals_padding_by_transformers(tiny_classifier_model: Path, tokenizer_json: Path) -> None:
    from transformers import AutoTokenizer

    rows = np.array([4, 1, 2])
    reference = AutoTokenizer.from_pretrained(tiny_classifier_model)(
        [TEXTS[row] for row in rows], truncation=True, max_length=16, padding=True, return_tensors="np"
    )
    ids, mask, types = Tokenizer(tokenizer_json, 16).encode(TEXTS).padded(rows)
    np.testing.assert_array_equal(ids, reference["input_ids"])
    np.testing.assert_array_equal(mask, reference["attention_mask"])
    np.testing.assert_array_equal(types, reference["token_type_ids"])


def test_truncated_tells_what_was_cut_and_not_what_just_fits(tokenizer_json: Path) -> None:
    encoded = Tokenizer(tokenizer_json, 5).encode(["a b", "a b c", "a b c d"])
    assert encoded.lengths.tolist() == [4, 5, 5]
    assert encoded.truncated.tolist() == [False, False, True]


def test_no_texts_and_a_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", 4, pad_id=7)
    assert len(tokenizer.encode([]).lengths) == 0
    ids, mask, _ = tokenizer.encode([""]).padded(np.array([0]))
    assert (ids.tolist(), mask.tolist()) == ([[7]], [[0]])


def test_types_that_are_not_zero_are_kept(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    backend = Backend(models.WordLevel({"[UNK]": 0, "a": 1, "<cls>": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A:0 <cls>:2", special_tokens=[("<cls>", 2)])
    backend.save(str(tmp_path / "tokenizer.json"))
    encoded = Tokenizer(tmp_path / "tokenizer.json", 8, pad_type_id=3).encode(["a a", "a"])
    assert encoded.types.tolist() == [0, 0, 2, 0, 2]
    assert encoded.padded(np.array([0, 1]))[2].tolist() == [[0, 0, 2], [0, 2, 3]]


def test_errors(tokenizer_json: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no room for text: 2"):
        Tokenizer(tokenizer_json, 2)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactCorrupt, match="tokenizer does not load"):
        Tokenizer(tmp_path / "tokenizer.json", 16)
