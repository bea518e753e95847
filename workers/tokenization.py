"""Texts to token ids, flat and without padding; batches are padded when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..artifacts.errors import ArtifactCorrupt, UsageError


@dataclass(frozen=True)
class Encoded:
    """Token ids of many rows, one after the other: row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[np.int32]  # (tokens,)
    types: npt.NDArray[np.int32]  # (tokens,)
    offsets: npt.NDArray[np.int64]  # (rows + 1,)
    truncated: npt.NDArray[np.bool_]  # (rows,)
    pad_id: int = 0
    pad_type_id: int = 0

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens per row, special ones included, (rows,) int64."""
        return np.diff(self.offsets)

    def padded(
        self, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Ids, attention mask and type ids of ``rows``, padded on the right, each (rows, longest) int64."""
        lengths = self.lengths[rows]
        places = np.arange(int(lengths.max(initial=1)), dtype=np.int64)
        mask = places < lengths[:, None]
        source = (self.offsets[rows][:, None] + places)[mask]
        ids = np.full(mask.shape, self.pad_id, dtype=np.int64)
        types = np.full(mask.shape, self.pad_type_id, dtype=np.int64)
        ids[mask], types[mask] = self.ids[source], self.types[source]
        return ids, mask.astype(np.int64), types


class Tokenizer:
    """A tokenizer.json with truncation at ``max_length`` tokens, special ones included.

    Raises UsageError where ``max_length`` leaves no room for a token, ArtifactCorrupt where the file does not load.
    """

    def __init__(self, path: Path, max_length: int, pad_id: int = 0, pad_type_id: int = 0) -> None:
        self._tokenizer = _load(path)
        special = self._tokenizer.num_special_tokens_to_add(False)
        if max_length <= special:
            raise UsageError(f"max_length leaves no room for text: {max_length}", f"{special} tokens are special ones")
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self._max_length = max_length
        self._pad = (pad_id, pad_type_id)
        # The post-processor gives the tokens of every single text the same types: nearly always zeros.
        self._typed = any(self._tokenizer.encode("a").type_ids)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Raises whatever the tokenizer raises on a text that it can't take."""
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        lengths = np.fromiter((len(encoding) for encoding in encodings), np.int64, len(encodings))
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        ids = _flat((encoding.ids for encoding in encodings), int(offsets[-1]))
        types = _flat((encoding.type_ids for encoding in encodings), len(ids)) if self._typed else np.zeros_like(ids)
        return Encoded(ids, types, offsets, self._cut(encodings, lengths), *self._pad)

    def _cut(self, encodings: Sequence[Any], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        cut = np.zeros(len(encodings), dtype=np.bool_)
        for row in np.flatnonzero(lengths >= self._max_length).tolist():
            cut[row] = bool(encodings[row].overflowing)
        return cut


def _flat(rows: Any, count: int) -> npt.NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(rows), np.int32, count)


def _load(path: Path) -> Any:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ArtifactCorrupt(f"tokenizer does not load: {path}: {error}", "compile the model again") from error
