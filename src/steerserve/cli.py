"""The command line. The commands that ask a service are in `terminal/`; the others run in this process, and import the
service only when they are used."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import steerserve
from steerserve import build
from steerserve.terminal import commands, evals, output, starting

main = typer.Typer(
    help="Serve language models, and steer them by features of sparse autoencoders.",
    no_args_is_help=True,
)

SERVICE = "Service"
Host = Annotated[str | None, typer.Option(help="Address to listen on (HOST).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on (PORT).")]


@main.command("serve", rich_help_panel=SERVICE)
def serve_command(host: Host = None, port: Port = None) -> None:
    """Start the service, with the settings of the environment and .env."""
    raise typer.Exit(_service().run_service(host, port))


@main.command("demo", rich_help_panel=SERVICE)
def demo_command(
    host: Host = None,
    port: Port = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a checkpoint to load in the place of the bundled model."),
    ] = None,
    sae: Annotated[
        list[Path] | None,
        typer.Option(help="With --model: its SAE. Give it again for more; the first is attached."),
    ] = None,
) -> None:
    """Serve with a model loaded and an SAE attached: the bundled ones, or your own."""
    raise typer.Exit(_service().run_demo(host, port, model, sae or []))


@main.command("doctor", rich_help_panel=SERVICE)
def doctor_command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the facts as a JSON object.")
    ] = False,
) -> None:
    """Say in plain words what this machine can do. Fails where the settings or the database are bad."""
    told, exit_code = _service().report(as_json=as_json)
    typer.echo(told)
    raise typer.Exit(exit_code)


@main.command("backup", rich_help_panel=SERVICE)
def backup_command(
    file: Annotated[Path, typer.Argument(help="The file that the copy becomes.")],
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Copy the database to FILE, also while the service runs, and check the copy."""
    raise typer.Exit(_service().back_up(file, may_replace=force))


@main.command("restore", rich_help_panel=SERVICE)
def restore_command(
    file: Annotated[Path, typer.Argument(help="A copy of the database.")],
) -> None:
    """Put a copy in the place of the database, which is kept under another name. The service must be stopped."""
    raise typer.Exit(_service().restore(file))


@main.command("openapi", rich_help_panel=SERVICE)
def openapi_command() -> None:
    """Print the API description as JSON."""
    typer.echo(_service().description())


@main.command("mcp", rich_help_panel=SERVICE)
def mcp_command(
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Also offer tools that change the service.")
    ] = False,
) -> None:
    """Serve tools for agents over the standard input and output (MCP), which ask the service at STEERSERVE_URL."""
    try:
        server = importlib.import_module("steerserve.agents.server")
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types"):
            raise
        output.say("the package `mcp` is not installed: pip install 'steerserve[mcp]'")
        raise typer.Exit(output.WRONG_USE) from None
    server.run(allow_changes=allow_changes)


commands.add(main)
main.add_typer(evals.commands, name="eval", rich_help_panel="Evaluations")


@main.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"steerserve {steerserve.__version__}")
        raise typer.Exit


def _service() -> ModuleType:
    """The commands that need the service in this process."""
    try:
        version = build.service_version()
        service = importlib.import_module("steerserve.app.commands")
    except ModuleNotFoundError as error:
        output.say(f"the service is not installed, {error.name} is missing: {starting.INSTALL}")
        raise typer.Exit(output.WRONG_USE) from None
    if version != build.version():
        output.say(f"this is {build.version()}, and the service is {version}: {starting.INSTALL}")
        raise typer.Exit(output.WRONG_USE)
    return service
