"""Every error headrace raises.

::

    HeadraceError                 exit 1
    ├── UsageError                exit 2   what the user asked for can't be done as asked
    │   ├── SpecError                      the job file: unknown key, bad value, missing variable
    │   ├── SourceError                    missing path, no data files, missing column, a table's folder
    │   ├── SinkError                      unwritable sink, unusable state, another job's output
    │   └── ArtifactNotFound               no artifact at that path, or no such variant in it
    ├── ArtifactCorrupt           exit 1   a hash does not match
    ├── CompileError              exit 1   export, parity or quantization failed
    ├── LimitExceeded             exit 1   too many bad rows
    ├── LedgerFault               exit 1   what `verify` found
    ├── SinkHeld                  exit 75  another run holds the sink
    ├── LeaseLost                 exit 75  a later epoch exists: this run must stop
    ├── Interrupted               exit 130 / 143
    ├── TransientError            exit 1   trying again may help (storage, network)
    └── BadInput                  exit 1   a file or row that can't be scored; goes to quarantine
        ├── BadFile
        └── SourceChanged                  the file is no longer the one that was planned
"""

from __future__ import annotations

_LONGEST = 500


class HeadraceError(Exception):
    """Base of the tree. ``hint`` says what to do; errors pickle with both."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint)

    def __str__(self) -> str:
        return self.message


class UsageError(HeadraceError):
    exit_code = 2


class SpecError(UsageError):
    pass


class SourceError(UsageError):
    pass


class SinkError(UsageError):
    pass


class ArtifactNotFound(UsageError):
    pass


class ArtifactCorrupt(HeadraceError):
    pass


class CompileError(HeadraceError):
    pass


class LimitExceeded(HeadraceError):
    pass


class LedgerFault(HeadraceError):
    pass


class SinkHeld(HeadraceError):
    exit_code = 75


class LeaseLost(HeadraceError):
    exit_code = 75


class Interrupted(HeadraceError):
    """``signal_number`` 2 exits 130, 15 exits 143."""

    def __init__(self, message: str, hint: str | None = None, signal_number: int = 2) -> None:
        super().__init__(message, hint)
        self.signal_number = signal_number
        self.exit_code = 128 + signal_number

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint, self.signal_number)


class TransientError(HeadraceError):
    pass


class BadInput(HeadraceError):
    """``path`` is the source file."""

    def __init__(self, message: str, hint: str | None = None, path: str = "") -> None:
        super().__init__(message, hint)
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint, self.path)


class BadFile(BadInput):
    pass


class SourceChanged(BadInput):
    """``path`` is the file that is another one now."""


def one_line(error: BaseException) -> str:
    """Another library's error in one line of ours, its type first: such messages may run over many."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")[:_LONGEST]
