"""Distributed batch inference over Parquet with compiled ONNX models on Ray.

The command line's own functions, for Python::

    import headrace

    headrace.compile("path/to/model", Path("artifact"))
    result = headrace.run(headrace.load_job("job.yaml"))

Names are imported when they are first used, so ``import headrace`` is quick and loads neither Ray nor ONNX Runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .artifacts.errors import HeadraceError as HeadraceError
    from .jobs.compiling import compile_model as compile
    from .jobs.driver import plan_job as plan
    from .jobs.driver import run_job as run
    from .jobs.session import RunOptions as RunOptions
    from .jobs.spec import Job as Job
    from .jobs.spec import load_job as load_job

__version__ = "0.1.0"
__all__ = ["HeadraceError", "Job", "RunOptions", "__version__", "compile", "load_job", "plan", "run"]

_PLACES = {
    "HeadraceError": ("artifacts.errors", "HeadraceError"),
    "Job": ("jobs.spec", "Job"),
    "RunOptions": ("jobs.session", "RunOptions"),
    "compile": ("jobs.compiling", "compile_model"),
    "load_job": ("jobs.spec", "load_job"),
    "plan": ("jobs.driver", "plan_job"),
    "run": ("jobs.driver", "run_job"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(f".{module}", __name__), attribute)
