"""What a command says on stdout: text for people or JSON for programs, behind one interface. Logs go to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Shown:
    """One answer in both forms: a value that JSON can hold, and lines of text."""

    value: Any
    lines: Sequence[str]


class Output(Protocol):
    def show(self, shown: Shown) -> None: ...


class TextOutput:
    def show(self, shown: Shown) -> None:
        _print("\n".join(shown.lines))


class JsonOutput:
    def show(self, shown: Shown) -> None:
        _print(json.dumps(shown.value, indent=2, ensure_ascii=False, default=str))


def output_for(as_json: bool) -> Output:
    return JsonOutput() if as_json else TextOutput()


def _print(text: str) -> None:
    """A reader that has gone (``headrace plan job.yaml | head``) is no error: the exit code stays the command's own."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more at exit: let it go nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Rows as aligned text, two spaces between columns; the last one is as long as it likes."""
    table = [list(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    return [indent + "  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in table]


def count(number: int, noun: str) -> str:
    """1 row, 1,234 rows, 7 batches."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Two units at most: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for unit, length, below, lower in (("d", 86_400, 3600, "h"), ("h", 3600, 60, "min"), ("min", 60, 1, "s")):
        if whole >= length:
            rest = whole % length // below
            return f"{whole // length} {unit} {rest} {lower}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def size(size_bytes: float) -> str:
    """In powers of ten: 812 B, 1.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "B" or size_bytes >= 100 else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
