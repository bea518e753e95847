"""``compile_model``: the steps from a Hugging Face model to a sealed artifact, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bundle import TOKENIZER_NAME, seal_bundle, write_manifest
from ..errors import UsageError
from ..hardware import this_cpu
from ..manifest import Content, Manifest, Report
from . import check, export, libraries
from .figures import Array, truth_of
from .pytorch import TorchModel, load_config, load_model
from .sentence import Sentence, read_sentence_files, transformer_folder
from .source import Source, clean_name, fetch_source
from .target import check_same_model, check_target, move_into_place, workspace
from .task import read_classes, resolve_task
from .tokenizer import TokenizerFile, read_tokenizer


@dataclass(frozen=True)
class Step:
    """What all steps share: the choices made, the checks' figures so far, and where to tell progress."""

    source: Source
    recipes: dict[str, export.Recipe]
    score: check.ScoreFunction
    say: Callable[[str], None]
    eval_texts: check.EvalTexts | None
    warnings: list[str] = field(default_factory=list)
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)

    def warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.warnings.append(line)
            self.say(f"warning: {line}")

    def report(self) -> Report:
        return Report(
            source=self.source.given,
            revision=self.source.revision,
            tools=libraries.versions(),
            machine=libraries.machine(),
            checks=self.checks,
            warnings=tuple(self.warnings),
        )


def compile_model(
    model: str,
    out: Path,
    *,
    score: check.ScoreFunction,
    say: Callable[[str], None],
    revision: str | None = None,
    task: str | None = None,
    variants: Sequence[str] = (),
    eval_texts: check.EvalTexts | None = None,
    name: str | None = None,
    max_length: int | None = None,
    force: bool = False,
) -> Manifest:
    """Compiles ``model`` (a hub id or a folder in Hugging Face format) into the artifact ``out``.

    ``score`` is the worker's own way from texts to answers, so that what is measured is what runs. ``variants`` adds to
    cpu-fp32, by default the int8 variant of this machine. ``max_length`` may only lower the model's own. An artifact at
    ``out`` is replaced once the new one is complete: the same model's, or with ``force`` any. ``say`` gets one line per
    step.

    Raises UsageError for what can't be asked for, CompileError where the export is not the model.
    """
    out = Path(out).expanduser().resolve()
    check_target(out)
    recipes = export.choose_recipes(tuple(variants), this_cpu())
    artifact_name = _artifact_name(name)
    libraries.require_libraries()
    source = fetch_source(model, revision)
    if not force:
        check_same_model(out, artifact_name or source.name, model)
    step = Step(source, recipes, score, say, eval_texts)
    with workspace(out) as work:
        content, reference = _build(step, work, task, artifact_name or source.name, max_length)
        manifest = _check(step, work / "bundle", content, reference)
        move_into_place(work / "bundle", out)
    say(f"artifact: {manifest.model} at {out}")
    return manifest


def _artifact_name(name: str | None) -> str | None:
    if name is not None and clean_name(name) != name:
        raise UsageError(
            f"a name holds letters, digits, dots, dashes and underscores: {name}", f"try {clean_name(name)}"
        )
    return name


def _build(step: Step, work: Path, task: str | None, name: str, max_length: int | None) -> tuple[Content, TorchModel]:
    """Writes graphs and tokenizer to ``work/bundle``; the content still lacks the hashes."""
    folder = transformer_folder(step.source.folder)
    config = load_config(folder)
    resolved = resolve_task(task, config, step.source.folder)
    embedding = resolved == "feature-extraction"
    sentence = read_sentence_files(step.source.folder) if embedding else Sentence(folder)
    step.say(f"loading {step.source.given} for {resolved}")
    reference = load_model(folder, resolved, sentence.lower)
    tokenizer = read_tokenizer(reference, sentence.max_length, max_length)
    step.warn(tokenizer.warnings)
    content = _content(step, name, reference, sentence, tokenizer)
    if step.eval_texts is not None and step.eval_texts.labels is not None:
        truth_of(content, step.eval_texts.labels)  # before the slow steps
    bundle = work / "bundle"
    bundle.mkdir()
    (bundle / TOKENIZER_NAME).write_text(tokenizer.json, encoding="utf-8")
    _write_graphs(step, folder, reference, content, work)
    described = tuple(export.variant_of(name, recipe, bundle) for name, recipe in step.recipes.items())
    return content.model_copy(update={"variants": described}), reference


def _content(
    step: Step, name: str, reference: TorchModel, sentence: Sentence, tokenizer: TokenizerFile
) -> Content:  # fmt: skip
    config = reference.model.config
    common: dict[str, Any] = {
        "name": name,
        "task": reference.task,
        "max_length": tokenizer.max_length,
        "pad_id": tokenizer.pad_id,
        "pad_type_id": tokenizer.pad_type_id,
        "variants": (),
        "files": (),
    }
    if reference.task == "feature-extraction":
        step.warn(sentence.warnings)
        shape = {"pooling": sentence.pooling, "normalize": sentence.normalize, "dimension": config.hidden_size}
        return Content(**common, **shape)
    classes = read_classes(config)
    step.warn(classes.warnings)
    return Content(**common, labels=classes.labels, problem_type=classes.problem_type)


def _write_graphs(step: Step, folder: Path, reference: TorchModel, content: Content, work: Path) -> None:
    step.say("exporting to ONNX")
    graph = export.export_graph(folder, reference.task, work / "export")
    worst = check.check_graph(reference, graph, content.max_length)
    step.checks["cpu-fp32"] = {"probes": {"graph_difference_to_pytorch": worst}}
    for name, recipe in step.recipes.items():
        if recipe.precision == "fp32":
            export.copy_graph(graph, work / "bundle" / name)
        else:
            step.say(f"quantizing {name}")
            export.quantize(graph, work / "bundle" / name, recipe.reduced)


def _check(step: Step, bundle: Path, content: Content, reference: TorchModel) -> Manifest:
    """Seals, scores with every variant, and seals again with what was found."""
    content = seal_bundle(bundle, content, step.report()).content
    probes = check.usable_probes(reference, content.max_length)
    base = _scored(step, bundle, content, "cpu-fp32", probes)
    worst = check.check_answers(reference, content, base, probes)
    step.checks["cpu-fp32"]["probes"] |= {
        "rows": float(len(probes)),
        "difference_to_pytorch": worst,
        "tolerance": check.PARITY_TOLERANCE,
    }
    step.say(f"cpu-fp32 equals PyTorch within {worst:.1e} on {len(probes)} probe texts")
    for name in step.recipes:
        if name != "cpu-fp32":
            other = _scored(step, bundle, content, name, probes)
            step.checks[name] = {"probes": check.probe_figures(content, base, other)}
            step.say(f"{name} scored {len(probes):,} probe texts")
    _measure(step, bundle, content)
    _warn_of_other_hardware(step)
    return write_manifest(bundle, content, step.report())


def _measure(step: Step, bundle: Path, content: Content) -> None:
    """The same on the user's own rows."""
    if step.eval_texts is None:
        return
    base: Array | None = None
    for name in step.recipes:  # cpu-fp32 comes first
        answers = _scored(step, bundle, content, name, step.eval_texts.texts)
        step.checks[name]["eval"] = check.eval_figures(content, answers, base, step.eval_texts)
        step.checks[name]["eval_data"] = step.eval_texts.description
        step.say(f"{name} scored {len(step.eval_texts.texts):,} evaluation rows")
        base = answers if base is None else base


def _scored(step: Step, bundle: Path, content: Content, variant: str, texts: Sequence[str]) -> Array:
    found = step.score(bundle, variant, texts)
    check.require_finite(found, variant, (len(texts), content.dimension or len(content.labels)))
    return found


def _warn_of_other_hardware(step: Step) -> None:
    cpu = this_cpu()
    foreign = [name for name, recipe in step.recipes.items() if recipe.target not in cpu.targets]
    if foreign:
        step.warn([f"measured on a CPU of another kind ({cpu.instruction_set}): {', '.join(foreign)}"])
