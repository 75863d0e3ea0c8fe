"""What the commands of the command line do that need the service in this process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pydantic import ValidationError
from uvicorn.importer import import_from_string

from steerserve.app import copies, doctor, serve
from steerserve.rules import field_faults
from steerserve.settings import Settings


def run_service(host: str | None, port: int | None) -> int:
    """Run the service until it stops. Returns the exit code."""
    # the application reads its settings from the environment, so the options are put there
    if host is not None:
        os.environ["HOST"] = host
    if port is not None:
        os.environ["PORT"] = str(port)
    return serve.run(_settings())


def run_demo(host: str | None, port: int | None) -> int:
    """Run the service with the demo model, until it stops. Returns the exit code."""
    os.environ["DEMO"] = "true"
    return run_service(host, port)


def report(*, as_json: bool) -> str:
    """What this machine can do, for people or as a JSON object."""
    if not as_json:
        return doctor.report(_settings())
    facts = doctor.facts(_settings()).items()
    return json.dumps({name.replace(" ", "_"): told for name, told in facts}, indent=2)


def description() -> str:
    """The description of the API as JSON."""
    service = import_from_string(serve.APPLICATION)(_settings())
    return json.dumps(service.api.openapi(), indent=2)


def back_up(file: Path, *, may_replace: bool) -> int:
    """Copy the database to a file. Returns the exit code."""
    return copies.back_up(_settings(), file, may_replace=may_replace)


def restore(file: Path) -> int:
    """Put a copy in the place of the database. Returns the exit code."""
    return copies.restore(_settings(), file)


def _settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        for problem in error.errors(include_input=False):
            name = str(problem["loc"][0]).upper() if problem["loc"] else ""
            message = field_faults.described(problem)
            print(f"setting {name}: {message}" if name else message, file=sys.stderr)
        raise SystemExit(2) from None
