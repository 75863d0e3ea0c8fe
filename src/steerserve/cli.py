"""The command line: serve, demo, doctor, openapi. It only parses arguments and starts the work."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer
from pydantic import ValidationError
from uvicorn.importer import import_from_string

from steerserve import __version__
from steerserve.app import doctor, serve
from steerserve.rules import field_faults
from steerserve.settings import Settings

main = typer.Typer(
    help="Serve language models, and steer them by features of sparse autoencoders.",
    no_args_is_help=True,
    add_completion=False,
)

Host = Annotated[str | None, typer.Option(help="Address to listen on (HOST).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on (PORT).")]


@main.command("serve")
def serve_command(host: Host = None, port: Port = None) -> None:
    """Start the service, with the settings of the environment and .env."""
    _serve(host, port)


@main.command("demo")
def demo_command(host: Host = None, port: Port = None) -> None:
    """Serve with the bundled demo model loaded and an SAE attached."""
    os.environ["DEMO"] = "true"
    _serve(host, port)


@main.command("doctor")
def doctor_command() -> None:
    """Say in plain words what this machine can do."""
    typer.echo(doctor.report(_settings()))


@main.command("openapi")
def openapi_command() -> None:
    """Print the API description as JSON."""
    service = import_from_string(serve.APPLICATION)(_settings())
    typer.echo(json.dumps(service.api.openapi(), indent=2))


@main.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"steerserve {__version__}")
        raise typer.Exit


def _serve(host: str | None, port: int | None) -> None:
    # the application reads its settings from the environment, so the options are put there
    if host is not None:
        os.environ["HOST"] = host
    if port is not None:
        os.environ["PORT"] = str(port)
    raise typer.Exit(serve.run(_settings()))


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            name = str(problem["loc"][0]).upper() if problem["loc"] else ""
            message = field_faults.described(problem)
            typer.echo(f"setting {name}: {message}" if name else message, err=True)
        raise typer.Exit(2) from None
