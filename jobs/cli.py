"""The command line: commands and their options. What they do is in ``commands.py``, imported when one runs.

Nothing heavy is imported here: ``headrace --help`` must not wait for Ray or ONNX Runtime.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from .guard import SETTINGS, finish

app = typer.Typer(
    name="headrace",
    help="Scores Parquet with compiled ONNX models on Ray: every row once, and you can see what it did.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _verbose(value: bool) -> bool:
    SETTINGS.verbose = SETTINGS.verbose or value
    return value


def _json(value: bool) -> bool:
    SETTINGS.as_json = SETTINGS.as_json or value
    return value


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        typer.echo(f"headrace {__version__}")
        raise typer.Exit


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", callback=_verbose, help="More log lines, and tracebacks of errors.")
]
Json = Annotated[bool, typer.Option("--json", callback=_json, help="One JSON value on stdout, for programs.")]
JobFile = Annotated[str, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Sink = Annotated[str, typer.Argument(metavar="SINK", help="The folder with the predictions: a path or a URL.")]
State = Annotated[str | None, typer.Option("--state", help="The state's folder, where sink.state moved it.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Sets a variable of the job, or a key as in task.max_length=64."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="SQL",
        help="Only rows for which this holds, besides source.where. Over partition keys it only selects; over columns "
        "it is part of what the sink holds.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        min=1,
        metavar="N",
        help="The first N rows, before where. Needs a sink of its own: --set sink.path=PATH.",
    ),
]


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Shows the version and exits.")
    ] = False,
    verbose: Verbose = False,
) -> None:
    """Every command takes --verbose and --json. Exit codes: 0 done, 1 failed, 2 wrong usage or job file,
    3 rows in quarantine (with --fail-on-quarantine), 75 another run holds the sink, 130 and 143 interrupted."""


@app.command("compile")
def compile_model(
    model: Annotated[str, typer.Argument(help="A model's id on the Hugging Face Hub, or a folder in that format.")],
    out: Annotated[str, typer.Option("--out", "-o", metavar="ARTIFACT", help="The folder for the artifact.")],
    revision: Annotated[str | None, typer.Option(help="Commit, tag or branch of a model on the Hub.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="text-classification, feature-extraction or a known alias; by default the model's own."),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="A variant besides cpu-fp32; may be repeated. By default int8 for this machine."),
    ] = None,
    eval_data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARQUET", help="Rows to measure the accuracy on: a file, folder or glob; may be repeated."
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Text column of these rows; repeated ones are joined by a space."),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of these rows with true labels, for a classifier's accuracy."),
    ] = None,
    eval_rows: Annotated[int, typer.Option(min=1, help="How many of these rows at most, chosen at random.")] = 5000,
    name: Annotated[str | None, typer.Option(help="The artifact's name; by default the model's.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens per row at most, if fewer than the model takes."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replaces the artifact of another model too.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Turns a Hugging Face model into an artifact, and measures what that cost in accuracy."""
    from .compiling import EvalData

    data = EvalData(tuple(eval_data or ()), tuple(text or ()), label, eval_rows)
    choices = {"revision": revision, "task": task, "variants": tuple(variant or ()), "name": name}
    finish("compile", model, out, data, {**choices, "max_length": max_length, "force": force})


@app.command()
def inspect(
    artifact: Annotated[str, typer.Argument(help="An artifact: a path or a URL.")],
    verify: Annotated[bool, typer.Option("--verify", help="Reads every file and checks its hash.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Shows what is in an artifact and what compiling cost."""
    finish("inspect", artifact, verify)


@app.command()
def preview(
    job: JobFile,
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")] = 10,
    sets: Sets = None,
    where: Where = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Scores a few rows to the terminal; writes nothing."""
    finish("preview", job, tuple(sets or ()), where, rows)


@app.command()
def plan(
    job: JobFile,
    sets: Sets = None,
    where: Where = None,
    limit: Limit = None,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Shows what a run would do and how long it would take; writes nothing."""
    finish("plan", job, tuple(sets or ()), where, limit)


@app.command()
def run(
    job: JobFile,
    sets: Sets = None,
    where: Where = None,
    limit: Limit = None,
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster. By default RAY_ADDRESS, else a Ray on this machine alone."),
    ] = None,
    retry_quarantined: Annotated[
        bool, typer.Option("--retry-quarantined", help="Tries rows and files in quarantine again.")
    ] = False,
    fail_on_quarantine: Annotated[
        bool, typer.Option("--fail-on-quarantine", help="Exits 3 when this run put something into quarantine.")
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Brings the sink up to date with the source. Running it again continues."""
    options = {"address": address, "retry_quarantined": retry_quarantined, "fail_on_quarantine": fail_on_quarantine}
    finish("run", job, tuple(sets or ()), where, limit, options)


@app.command()
def status(sink: Sink, state: State = None, verbose: Verbose = False, as_json: Json = False) -> None:
    """Shows how a run is doing, or how the last one ended, from files alone."""
    finish("status", sink, state)


@app.command()
def verify(sink: Sink, state: State = None, verbose: Verbose = False, as_json: Json = False) -> None:
    """Counts rows and duplicates; exits 1 where sink and ledger disagree. Writes nothing."""
    finish("verify", sink, state)


@app.command()
def repair(sink: Sink, state: State = None, verbose: Verbose = False, as_json: Json = False) -> None:
    """Makes the ledger anew from what the parts say of themselves."""
    finish("repair", sink, state)


@app.command()
def unlock(sink: Sink, state: State = None, verbose: Verbose = False, as_json: Json = False) -> None:
    """Ends a dead run's lease by hand. A run that still lives notices and stops."""
    finish("unlock", sink, state)


def main() -> None:
    """The ``headrace`` command."""
    SETTINGS.reset()
    app(args=sys.argv[1:], prog_name="headrace")
