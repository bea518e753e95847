"""What an artifact says of itself: ``manifest.json``, sealed by hashes.

``content`` decides the digest: what is shipped and how it is run. ``report`` holds figures and provenance, which may
differ between two compiles of the same thing; it is covered by ``seal`` only, so a changed byte is still found.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1
MANIFEST_NAME = "manifest.json"
TaskName = Literal["text-classification", "feature-extraction"]
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileHash(Frozen):
    """One file of the bundle, by its path inside it."""

    path: str
    sha256: str
    size_bytes: int


class Variant(Frozen):
    """One graph. ``files`` are paths in the bundle, the graph first, then its external data."""

    name: str  #: target-precision: cpu-fp32, cpu-vnni-int8, cpu-avx2-int8, cpu-arm64-int8
    target: str  #: cpu, cpu-vnni, cpu-avx2, cpu-arm64
    precision: str  #: fp32, int8
    recipe: str
    files: tuple[str, ...]
    batch_tokens: int
    batch_invariant: bool  #: a row's answer does not depend on its batch-mates


class Content(Frozen):
    format: int = FORMAT
    name: str
    task: TaskName
    problem_type: ProblemType | None = None  #: text-classification only
    labels: tuple[str, ...] = ()  #: by class index
    pooling: Literal["mean", "cls", "max"] | None = None  #: feature-extraction only
    normalize: bool = False
    dimension: int | None = None  #: of an embedding
    max_length: int  #: tokens, special ones included
    pad_id: int = 0
    pad_type_id: int = 0
    variants: tuple[Variant, ...]
    files: tuple[FileHash, ...]  #: every file of the bundle but the manifest, sorted by path


class Report(Frozen):
    """Provenance and what compiling cost. ``checks`` is by variant: see ``compiler/check.py`` for the figures."""

    source: str
    revision: str | None = None
    tools: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, str] = Field(default_factory=dict)
    checks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Manifest(Frozen):
    content: Content
    report: Report
    digest: str
    seal: str

    @classmethod
    def of(cls, content: Content, report: Report) -> Manifest:
        return cls(content=content, report=report, digest=digest_of(content), seal=seal_of(content, report))

    @property
    def model(self) -> str:
        """``name@digest`` with twelve digits: what stands in the predictions."""
        return f"{self.content.name}@{self.digest[:12]}"


def digest_of(content: Content) -> str:
    return hash_of(content.model_dump(mode="json"))


def seal_of(content: Content, report: Report) -> str:
    return hash_of({"content": content.model_dump(mode="json"), "report": report.model_dump(mode="json")})


def hash_of(value: object) -> str:
    """SHA-256 of ``value`` as JSON with sorted keys and no spaces, in hex."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
