"""The tokenizer as one file, without the padding and truncation it was published with, and its true maximum length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from .pytorch import TorchModel

_UNKNOWN_LENGTH = 512
#: transformers writes 1e30 where no length is known; nothing real is longer than this.
_SANE_LENGTH = 1_000_000


@dataclass(frozen=True)
class TokenizerFile:
    json: str  #: the content of tokenizer.json
    max_length: int  #: tokens, special ones included
    pad_id: int
    pad_type_id: int
    warnings: tuple[str, ...] = ()


def read_tokenizer(reference: TorchModel, sentence_length: int | None, wanted: int | None) -> TokenizerFile:
    """``sentence_length`` is what sentence-transformers cuts at, ``wanted`` what the user asks for.

    Raises UsageError where ``wanted`` is more than the model has positions for.
    """
    from tokenizers import Tokenizer, normalizers

    tokenizer = reference.tokenizer
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    # Published files often fix both, to 128 or 512: every text would be padded to that, and cut there.
    backend.no_padding()
    backend.no_truncation()
    if reference.lower:
        existing = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *existing])
    limit, warnings = _max_length(reference, sentence_length)
    return TokenizerFile(
        json=backend.to_str(),
        max_length=_wanted(wanted, limit),
        pad_id=tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else reference.model.config.pad_token_id or 0,
        pad_type_id=tokenizer.pad_token_type_id,
        warnings=warnings,
    )


def _max_length(reference: TorchModel, sentence_length: int | None) -> tuple[int, tuple[str, ...]]:
    known = [reference.tokenizer.model_max_length, _positions(reference.model), sentence_length]
    sane = [int(length) for length in known if length is not None and 0 < length < _SANE_LENGTH]
    if sane:
        return min(sane), ()
    return _UNKNOWN_LENGTH, (f"the model does not tell its maximum length, texts are cut at {_UNKNOWN_LENGTH} tokens",)


def _positions(model: Any) -> int | None:
    """How many tokens the position table has room for.

    RoBERTa and its kin number positions from padding_idx + 1 on, so 514 of them hold 512 tokens
    (transformers, ``create_position_ids_from_input_ids``).
    """
    positions: int | None = getattr(model.config, "max_position_embeddings", None)
    if positions is None:
        return None
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return positions - int(padding) - 1
    return positions


def _wanted(wanted: int | None, limit: int) -> int:
    if wanted is None:
        return limit
    if not 2 < wanted <= limit:
        raise UsageError(f"max_length must be from 3 to what the model allows, {limit}: {wanted}")
    return wanted
