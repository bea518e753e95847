"""The one place where errors become messages and exit codes, and where the command line's log is set up."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

import typer

from ..artifacts.errors import HeadraceError
from .output import JsonOutput, Shown, output_for

LOG = logging.getLogger("headrace")
INTERRUPTED = 130


@dataclass
class Settings:
    """Of the command line, for this process."""

    verbose: bool = False
    as_json: bool = False

    def reset(self) -> None:
        self.verbose, self.as_json = False, False


SETTINGS = Settings()


class _Handler(logging.StreamHandler[TextIO]):
    """Lines on whatever stderr is at the moment: a live display stands in for it while it is up."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.setLevel(level)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Always stderr."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return prefix + record.getMessage()


def finish(command: str, *arguments: Any) -> NoReturn:
    """Runs ``commands.<command>_command`` and leaves with its exit code."""
    raise typer.Exit(run_guarded(command, *arguments))


def run_guarded(command: str, *arguments: Any) -> int:
    """The exit code. A HeadraceError, or anything unforeseen, is told on stderr; with --json on stdout too."""
    _start_log()
    output = output_for(SETTINGS.as_json)
    try:
        commands = importlib.import_module(".commands", __package__)
        return int(getattr(commands, f"{command}_command")(output, *arguments))
    except HeadraceError as error:
        tell(error)
        code, told = error.exit_code, {"error": error.message, "hint": error.hint}
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code, told = INTERRUPTED, {"error": "interrupted", "hint": None}
    except Exception as error:  # noqa: BLE001  the last resort of the command line
        message = f"{type(error).__name__}: {error}"
        _print_error(message, None if SETTINGS.verbose else "run the same command with --verbose to see the traceback")
        code, told = 1, {"error": message, "hint": None}
    if isinstance(output, JsonOutput):
        output.show(Shown({**told, "exit_code": code}, []))
    return code


def tell(error: HeadraceError) -> None:
    """The message and what to do, on stderr."""
    _print_error(error.message, error.hint)


def _print_error(message: str, hint: str | None) -> None:
    if SETTINGS.verbose and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _start_log() -> None:
    level = logging.DEBUG if SETTINGS.verbose else logging.INFO
    LOG.handlers = [_Handler(level)]
    LOG.setLevel(level)
    LOG.propagate = False
