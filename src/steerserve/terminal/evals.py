"""The commands of `steerserve eval`, which run libraries of evaluations against a service."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from steerserve.terminal import output

LIBRARIES = ("lm_eval", "inspect_ai")
MISSING = "lm-evaluation-harness is not installed: pip install 'steerserve[lm-eval]'"

commands = typer.Typer(
    help="Evaluate a model of a running service, steered and not.", no_args_is_help=True
)


@commands.command(
    "lm",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def lm_command(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the model `steerserve`; takes the arguments of `lm_eval`."""
    if {"--help", "-h"} & set(context.args) and importlib.util.find_spec("lm_eval") is None:
        typer.echo(context.get_help())
        output.note(f"{MISSING}; its own options are listed then")
        return
    _module("lm_eval_model")
    wrong = _module("steering").WrongArgument
    harness = importlib.import_module("lm_eval.__main__")
    sys.argv = ["lm_eval", *_of_harness(context.args)]
    with output.refusals():
        try:
            harness.cli_evaluate()
        except wrong as error:
            output.say(str(error))
            raise typer.Exit(output.REFUSED) from None


def _of_harness(arguments: list[str]) -> list[str]:
    """The arguments of the harness, with the model where none is named. Its subcommands have models of their own."""
    is_run = not arguments or arguments[0].startswith("-") or arguments[0] == "run"
    if not is_run or any(one.partition("=")[0] in ("--model", "-M") for one in arguments):
        return arguments
    begin = arguments[:1] if arguments[:1] == ["run"] else ["run"]
    rest = arguments[1:] if arguments[:1] == ["run"] else arguments
    return [*begin, "--model", "steerserve", *rest]


@commands.command("sweep")
def sweep_command(
    task: Annotated[str, typer.Argument(help="A task of lm-evaluation-harness.")],
    strengths: Annotated[str, typer.Option(help="The strengths, separated by commas: 0,20,40.")],
    feature: Annotated[int | None, typer.Option(help="Add to this feature.")] = None,
    vector: Annotated[str | None, typer.Option(help="Add this vector, by id or name.")] = None,
    edit: Annotated[
        str | None, typer.Option(help="An edit as JSON, whose `value` is the strength.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="By default the loaded model.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or repository; by default the service tokenizes.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Documents of the task.", min=1)] = None,
    include_path: Annotated[
        str | None, typer.Option(help="A folder with tasks of your own.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="By default the first of the task.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the table and the plot.")] = Path(
        "sweep"
    ),
) -> None:
    """Score one task at several strengths, all in one batch; writes a table and a plot."""
    values, edits = _strengths(strengths), _edits(feature, vector, edit)
    sweeps = _module("sweep")
    with output.refusals():
        try:
            curve = sweeps.sweep(
                task,
                values,
                edits,
                model=model,
                tokenizer=tokenizer,
                limit=limit,
                include_path=include_path,
                metric=metric,
                say=output.note,
            )
        except ValueError as error:
            output.say(str(error))
            raise typer.Exit(output.REFUSED) from None
    typer.echo(curve.table(), nl=False)
    for path in curve.write(out):
        output.note(f"wrote {path}")


def _strengths(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise typer.BadParameter("--strengths takes numbers, separated by commas")
    return values


def _edits(
    feature: int | None, vector: str | None, edit: str | None
) -> Callable[[float], Mapping[str, object]]:
    """The fields of a request at a strength."""
    if sum(one is not None for one in (feature, vector, edit)) != 1:
        raise typer.BadParameter("name one of --feature, --vector and --edit")
    named: dict[str, object] = {"op": "add"}
    if feature is not None:
        named["feature"] = {"index": feature}
    elif vector is not None:
        named["vector"] = vector
    else:
        try:
            named = dict(json.loads(edit or ""))
        except (ValueError, TypeError):
            raise typer.BadParameter("--edit is a JSON object") from None
    return lambda strength: {"interventions": {"edits": [{**named, "value": strength}]}}


def _module(name: str) -> ModuleType:
    """A module of `steerserve.evals`, which needs one of LIBRARIES."""
    try:
        return importlib.import_module(f"steerserve.evals.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        output.say(MISSING)
        raise typer.Exit(output.WRONG_USE) from None
