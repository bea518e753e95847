"""feature-extraction: token embeddings pooled to one vector per row, as sentence-transformers does it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...artifacts.errors import ArtifactCorrupt
from ...artifacts.manifest import Content
from ..shard import TaskOptions
from .base import Floats, refuse


class Embedding:
    """Pooling (sentence_transformers/models/Pooling.py) and normalization are the artifact's own."""

    output = "last_hidden_state"

    def __init__(self, content: Content, options: TaskOptions) -> None:
        if content.dimension is None or content.pooling is None:
            raise ArtifactCorrupt("manifest has no dimension or pooling", "compile the model again")
        refuse({"top_k": options.top_k, "score_of": options.score_of}, "an embedding has no labels")
        self.width = content.dimension
        self._pooling = content.pooling
        self._normalize = content.normalize

    def fields(self) -> list[pa.Field]:
        return [pa.field("embedding", pa.list_(pa.float32(), self.width))]

    def answers(self, raw: Floats, mask: npt.NDArray[np.int64]) -> Floats:
        """``raw`` (rows, tokens, dimension) to (rows, dimension) float32."""
        pooled = self._pool(raw, mask[:, :, None].astype(np.float32))
        if self._normalize:
            norms = np.sqrt(np.sum(pooled * pooled, axis=1, keepdims=True))
            pooled = pooled / np.maximum(norms, np.float32(1e-12))
        return np.asarray(pooled, dtype=np.float32)

    def _pool(self, tokens: Floats, mask: Floats) -> Floats:
        if self._pooling == "cls":
            return tokens[:, 0]
        if self._pooling == "max":
            return np.asarray(np.where(mask > 0, tokens, np.float32(-1e9)).max(axis=1), dtype=np.float32)
        summed = (tokens * mask).sum(axis=1)
        return np.asarray(summed / np.maximum(mask.sum(axis=1), np.float32(1e-9)), dtype=np.float32)

    def columns(self, answers: Floats, given: npt.NDArray[np.bool_]) -> list[pa.Array]:
        values = np.where(given[:, None], answers, np.float32(0)).astype(np.float32)
        flat = pa.array(values.ravel(), pa.float32())
        return [pa.FixedSizeListArray.from_arrays(flat, self.width, mask=pa.array(~given))]
