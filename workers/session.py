"""An ONNX Runtime session that keeps to the threads and the memory it was given, and the feed for its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..artifacts.errors import ArtifactCorrupt, HeadraceError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CPU = "CPUExecutionProvider"
#: Every error is raised too, with the same words: a quarantined row needs no line in the log.
_FATAL_ONLY = 4

Tokens = npt.NDArray[np.int64]  # (rows, tokens)


def open_session(graph: Path, threads: int) -> InferenceSession:
    """A CPU session over ``graph`` with ``threads`` intra-op threads.

    The arena extends by what was asked for, not by powers of two, and no memory pattern is kept per input shape: with
    batches of every shape the first grows (onnxruntime#11627), the second only costs time. Peak memory of MiniLM over
    30 random shapes of 4,096 tokens: 448 MB so, 474 MB with the defaults, 586 MB with no arena.

    Raises ArtifactCorrupt where the graph does not load, HeadraceError where another provider would run it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL_ONLY
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    provider = (CPU, {"arena_extend_strategy": "kSameAsRequested"})
    try:
        session = onnxruntime.InferenceSession(str(graph), options, providers=[provider])
    except Exception as error:  # ONNX Runtime's errors share no base of their own
        raise ArtifactCorrupt(f"graph does not load: {graph}: {error}", "compile the model again") from error
    _check_provider(session)
    return session


def _check_provider(session: InferenceSession) -> None:
    """A provider that can't be had is replaced silently."""
    used = session.get_providers()
    if used[:1] != [CPU]:
        raise HeadraceError(f"session runs on another provider: {', '.join(used)}", f"{CPU} was asked for")


def feed_for(session: InferenceSession, ids: Tokens, mask: Tokens, types: Tokens) -> dict[str, npt.NDArray[np.generic]]:
    """One value for each input that the graph has, in its own integer type. All arrays (rows, tokens) int64.

    Raises ArtifactCorrupt for an input that no encoder has.
    """
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int64), ids.shape)
    known = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types, "position_ids": positions}
    return {node.name: _typed(known, node.name, node.type) for node in session.get_inputs()}


def _typed(known: Mapping[str, Tokens], name: str, kind: str) -> npt.NDArray[np.generic]:
    if name not in known or kind not in _DTYPES:
        message = f"graph asks for an unknown input: {name}, {kind}"
        raise ArtifactCorrupt(message, f"known are {', '.join(known)} as {' or '.join(_DTYPES)}")
    return np.ascontiguousarray(known[name], dtype=_DTYPES[kind])


_DTYPES: Mapping[str, type[np.generic]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
