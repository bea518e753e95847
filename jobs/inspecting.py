"""``headrace inspect``: an artifact for a person, and in one line what a variant costs against fp32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..artifacts.bundle import Bundle, open_bundle
from ..artifacts.manifest import Content, Manifest, Variant
from .output import Shown, columns, size

_FP32 = "cpu-fp32"
#: In this order; the report's own is the alphabet's.
_TITLES = {
    "accuracy": "accuracy",
    "accuracy_fp32": "fp32's",
    "mean_absolute_error": "mean absolute error",
    "mean_absolute_error_fp32": "fp32's",
    "cosine_mean": "mean cosine to fp32",
    "cosine_p1": "1st percentile",
    "cosine_min": "worst",
    "agreement": "same answer as fp32",
    "score_drift_mean": "mean score drift",
    "score_drift_p99": "99th percentile",
    "score_drift_max": "largest",
    "difference_to_pytorch": "largest difference to PyTorch",
    "graph_difference_to_pytorch": "of the bare graph",
}
_SHARES = {"agreement", "accuracy", "accuracy_fp32"}


def inspect_artifact(url: str, verify: bool = False) -> Shown:
    """``verify`` reads every file. Raises ArtifactNotFound, ArtifactCorrupt."""
    bundle = open_bundle(url)
    if verify:
        bundle.verify()
    return _shown(bundle, ", hashes right" if verify else ", hashes not checked, see --verify")


def compiled_artifact(url: str) -> Shown:
    """The same of an artifact that was sealed a moment ago. Raises ArtifactNotFound, ArtifactCorrupt."""
    return _shown(open_bundle(url), "")


def _shown(bundle: Bundle, hashes: str) -> Shown:
    return Shown(bundle.manifest.model_dump(mode="json"), list(_lines(bundle, hashes)))


def cost_line(manifest: Manifest, variant: str) -> str | None:
    """What ``variant`` costs against fp32, on the rows given to compile or else on its probe texts."""
    if variant == _FP32:
        return None
    checks = manifest.report.checks.get(variant, {})
    for kind, what in (("eval", "evaluation rows"), ("probes", "probe texts")):
        if checks.get(kind):
            return f"{_figures(checks[kind], first=3)} (on {checks[kind]['rows']:,.0f} {what})"
    return None


def _lines(bundle: Bundle, hashes: str) -> Iterator[str]:
    content, report = bundle.content, bundle.manifest.report
    yield bundle.model
    pairs = [*_about(content), ("source", report.source + (f" at {report.revision}" if report.revision else ""))]
    pairs += [("digest", bundle.digest), ("files", f"{len(content.files)}{hashes}")]
    yield from columns([("  " + name, text) for name, text in pairs])
    yield "variants"
    sizes = {file.path: file.size_bytes for file in content.files}
    yield from columns([_variant(variant, sizes) for variant in content.variants], "  ")
    yield "what compiling cost"
    for variant in content.variants:
        yield from _checks(variant.name, report.checks.get(variant.name, {}))
    if report.machine:
        yield f"compiled on {report.machine.get('cpu', '?')} with " + _tools(report.tools)
    yield from (f"warning: {warning}" for warning in report.warnings)


def _about(content: Content) -> Iterator[tuple[str, str]]:
    problem = f" ({content.problem_type.replace('_', ' ')})" if content.problem_type else ""
    yield "task", content.task + problem
    if content.labels:
        more = f" and {len(content.labels) - 10} more" if len(content.labels) > 10 else ""
        yield "labels", ", ".join(content.labels[:10]) + more
    if content.dimension is not None:
        normalized = ", normalized" if content.normalize else ""
        yield "embedding", f"{content.dimension} float32, {content.pooling} pooling{normalized}"
    yield "max length", f"{content.max_length} tokens"


def _variant(variant: Variant, sizes: Mapping[str, int]) -> tuple[str, str, str]:
    total = sum(sizes[path] for path in variant.files)
    return variant.name, size(total), f"{variant.recipe}, batches of {variant.batch_tokens} tokens"


def _checks(name: str, checks: Mapping[str, Any]) -> Iterator[str]:
    for kind, what in (("probes", "probe texts"), ("eval", "evaluation rows")):
        figures = checks.get(kind)
        if figures and _figures(figures):
            yield f"  {name} on {figures.get('rows', 0):,.0f} {what}: {_figures(figures)}"
            if kind == "eval":
                yield f"    {checks['eval_data']}"


def _figures(figures: Mapping[str, float], first: int | None = None) -> str:
    named = [f"{title} {_figure(name, figures[name])}" for name, title in _TITLES.items() if name in figures]
    return ", ".join(named[:first])


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if name in _SHARES else f"{value:.4g}"


def _tools(tools: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in tools.items() if version != "absent")
