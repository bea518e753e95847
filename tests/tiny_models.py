"""Tiny Hugging Face models made from a config, offline and seeded: real files, real graphs, meaningless answers."""

from __future__ import annotations

import json
import string
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LABELS = ("negative", "neutral", "positive")
_TEXT = (
    "the a an of to in and or is are was be for with on at by from as that this it not no very more most some any "
    "all river water lake channel turbine wheel stone wood iron house field tree animal plant person people child "
    "man woman good bad great small large old new young long short high low open closed free paid early late fast "
    "slow warm cold make take give find send buy sell win lose run walk talk write read see hear think know feel "
    "move turn hold keep money offer price prize mail letter message list group meeting report project question "
    "answer number day week month year time place way part kind form act state body food drink color sound light "
    "dark red green blue black white"
)
WORDS = tuple(_TEXT.split())
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def classifier(
    folder: Path,
    labels: Sequence[str] = LABELS,
    problem_type: str | None = "single_label_classification",
    *,
    seed: int = 5,
    max_positions: int = 128,
    model_max_length: int | None = None,
) -> Path:
    """A 2-layer BERT with a classification head whose answers vary from text to text."""
    from transformers import BertForSequenceClassification

    config = _bert_config(max_positions)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    config.problem_type = problem_type
    model = _seeded(BertForSequenceClassification, config, seed)
    model.save_pretrained(folder)
    bert_tokenizer(model_max_length or max_positions).save_pretrained(folder)
    return folder


def encoder(folder: Path, *, seed: int = 11, max_positions: int = 128) -> Path:
    """A bare BERT encoder: no head, no sentence-transformers files."""
    from transformers import BertModel

    _seeded(BertModel, _bert_config(max_positions), seed).save_pretrained(folder)
    bert_tokenizer(max_positions).save_pretrained(folder)
    return folder


def embedder(
    folder: Path,
    pooling: str = "mean_tokens",
    *,
    normalize: bool = True,
    max_seq_length: int = 48,
    lower: bool = False,
    extra_module: str | None = None,
) -> Path:
    """An encoder with the files of sentence-transformers beside it."""
    encoder(folder)
    modules = [
        "Transformer",
        "Pooling",
        *(["Normalize"] if normalize else []),
        *([extra_module] if extra_module else []),
    ]
    listed = [_module(index, kind) for index, kind in enumerate(modules)]
    _write(folder / "modules.json", listed)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": lower})
    modes = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **modes})
    return folder


def roberta_classifier(folder: Path, labels: Sequence[str] = LABELS, *, max_positions: int = 40) -> Path:
    """RoBERTa keeps two positions for itself: 40 of them leave room for 38 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification

    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary = special | {c: i + 4 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", cls_token="<s>", eos_token="</s>", sep_token="</s>",
        unk_token="<unk>", pad_token="<pad>", model_max_length=512,
    )  # fmt: skip
    config = RobertaConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=max_positions, type_vocab_size=1, pad_token_id=1, initializer_range=0.4,
    )  # fmt: skip
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    _seeded(RobertaForSequenceClassification, config, 5).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bert_tokenizer(model_max_length: int) -> Any:
    """WordPiece over WORDS, single characters and their continuations, so that every ASCII word can be spelled."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertTokenizerFast

    vocabulary = _vocabulary()
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return BertTokenizerFast(tokenizer_object=backend, model_max_length=model_max_length)


def _vocabulary() -> dict[str, int]:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    pieces = [*SPECIAL, *characters, *(f"##{c}" for c in string.ascii_lowercase + string.digits), *WORDS]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}


def _bert_config(max_positions: int) -> Any:
    from transformers import BertConfig

    # A wide initializer: with the usual 0.02 every text gets nearly the same answer.
    return BertConfig(
        vocab_size=len(_vocabulary()), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=max_positions, type_vocab_size=2, initializer_range=0.4,
    )  # fmt: skip


def _seeded(kind: Any, config: Any, seed: int) -> Any:
    import torch

    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        return kind(config).eval()


def _module(index: int, kind: str) -> dict[str, object]:
    path = "" if kind == "Transformer" else f"{index}_{kind}"
    return {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))
