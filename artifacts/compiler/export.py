"""PyTorch model to ONNX graph, graph to int8 graph, and their files into the bundle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import CompileError, UsageError, one_line
from ..hardware import Cpu
from ..manifest import TaskName, Variant
from .libraries import quiet
from .pytorch import OUTPUTS

GRAPH_NAME = "model.onnx"
#: What a worker builds feeds from.
KNOWN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
#: More gains nothing, less loses little: bigger batches pad more and leave the cache.
_BATCH_TOKENS = 512
#: Protobuf can't hold more in one file; a margin for the rest of the graph.
_EXTERNAL_DATA_BYTES = 1_900_000_000


@dataclass(frozen=True)
class Recipe:
    """``reduced``: weights in 7 bits, because AVX2 kernels add two products in 16 bits and would saturate."""

    target: str
    precision: str
    reduced: bool = False

    @property
    def text(self) -> str:
        if self.precision == "fp32":
            return "export"
        return f"dynamic-int8-per-channel{'-reduced-range' if self.reduced else ''}"


RECIPES: Mapping[str, Recipe] = {
    "cpu-fp32": Recipe("cpu", "fp32"),
    "cpu-vnni-int8": Recipe("cpu-vnni", "int8"),
    "cpu-avx2-int8": Recipe("cpu-avx2", "int8", reduced=True),
    "cpu-arm64-int8": Recipe("cpu-arm64", "int8"),
}


def choose_recipes(names: tuple[str, ...], cpu: Cpu) -> dict[str, Recipe]:
    """By variant name, cpu-fp32 always first: it is what the others are compared with.

    Without ``names`` the int8 variant of ``cpu``'s best target comes along. Raises UsageError for unknown names.
    """
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        raise UsageError(f"unknown variant: {', '.join(unknown)}", f"known: {', '.join(RECIPES)}")
    wanted = {"cpu-fp32", *(names or (f"{cpu.targets[0]}-int8",))}
    return {name: recipe for name, recipe in RECIPES.items() if name in wanted}


def export_graph(model: Path, task: TaskName, into: Path) -> Path:
    """The plain fp32 graph, in a folder of its own. Raises CompileError where the exporter can't.

    No fusion is baked in: ONNX Runtime fuses when it loads a graph, and an int8 graph made of a fused one is slower.
    """
    from optimum.exporters.onnx import main_export

    try:
        with quiet():
            main_export(
                str(model), output=into, task=task, framework="pt", library_name="transformers", dtype="fp32",
                device="cpu", do_validation=False, local_files_only=True, trust_remote_code=False,
            )  # fmt: skip
    except Exception as error:  # the exporter and PyTorch's tracer raise nearly anything
        raise CompileError(f"the export failed: {one_line(error)}") from error
    graphs = sorted(into.glob("*.onnx"))
    if len(graphs) != 1:
        raise CompileError(f"the export made several graphs, one is needed: {', '.join(g.name for g in graphs)}")
    _check_interface(graphs[0], task)
    return graphs[0]


def _check_interface(graph: Path, task: TaskName) -> None:
    import onnx

    declared = onnx.load(str(graph), load_external_data=False).graph
    inputs, outputs = {value.name for value in declared.input}, {value.name for value in declared.output}
    if not inputs <= KNOWN_INPUTS or "input_ids" not in inputs:
        raise CompileError(f"the graph has inputs that no tokenizer gives: {', '.join(sorted(inputs - KNOWN_INPUTS))}")
    if OUTPUTS[task] not in outputs:
        raise CompileError(f"the graph has no output {OUTPUTS[task]}: {', '.join(sorted(outputs))}")


def quantize(graph: Path, into: Path, reduced: bool) -> None:
    """Dynamic int8, weights per channel (costs nothing and saves accuracy). Raises CompileError."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    into.mkdir(parents=True)
    size_bytes = sum(path.stat().st_size for path in graph.parent.glob(f"{graph.name}*"))
    try:
        with quiet():
            quantize_dynamic(
                graph, into / GRAPH_NAME, per_channel=True, reduce_range=reduced, weight_type=QuantType.QInt8,
                use_external_data_format=size_bytes > _EXTERNAL_DATA_BYTES,
            )  # fmt: skip
    except Exception as error:  # onnx and its shape inference raise nearly anything
        raise CompileError(f"quantization failed: {one_line(error)}") from error


def copy_graph(graph: Path, into: Path) -> None:
    """The graph and its external data, whose name inside the graph stays right."""
    into.mkdir(parents=True)
    for path in graph.parent.glob(f"{graph.name}*"):
        shutil.copy2(path, into / path.name)


def variant_of(name: str, recipe: Recipe, bundle: Path) -> Variant:
    """Describes the graph that lies in ``bundle / name``."""
    files = sorted(path.name for path in (bundle / name).iterdir())
    ordered = [GRAPH_NAME, *(file for file in files if file != GRAPH_NAME)]
    return Variant(
        name=name,
        target=recipe.target,
        precision=recipe.precision,
        recipe=recipe.text,
        files=tuple(f"{name}/{file}" for file in ordered),
        batch_tokens=_BATCH_TOKENS,
        # Dynamic int8 takes its activation scale from the whole batch: onnxruntime#10111.
        batch_invariant=recipe.precision == "fp32",
    )
