"""What the commands of the command line do that need the service in this process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from uvicorn.importer import import_from_string

from steerserve.app import copies, doctor, serve
from steerserve.logs import setup
from steerserve.rules import field_faults
from steerserve.settings import Settings, checks

FILE = Path(str(Settings.model_config["env_file"]))
"""The file of settings in the working directory."""


def run_service(host: str | None, port: int | None) -> int:
    """Run the service until it stops. Returns the exit code."""
    # the application reads its settings from the environment, so the options are put there
    if host is not None:
        os.environ["HOST"] = host
    if port is not None:
        os.environ["PORT"] = str(port)
    settings = _read_settings()
    if isinstance(settings, Settings):
        return serve.run(settings)
    form = checks.log_format(FILE)
    for fault in settings:
        setup.say_cannot_start(form, fault, serve.WRONG_SETTING)
    return serve.WRONG_SETTING


def run_demo(host: str | None, port: int | None, model: Path | None, saes: Sequence[Path]) -> int:
    """Run the service with the demo model, or with a model and SAEs of one's own, until it stops. Returns the exit
    code."""
    os.environ["DEMO"] = "true"
    if model is not None:
        os.environ["DEMO_MODEL"] = str(model)
    if saes:
        os.environ["DEMO_SAES"] = ":".join(map(str, saes))
    return run_service(host, port)


def report(*, as_json: bool) -> tuple[str, int]:
    """What this machine can do, for people or as a JSON object; and the exit code: that of a start with these
    settings, as far as the settings and the database decide it."""
    found = doctor.facts(_read_settings())
    if not as_json:
        return doctor.report(found), found.exit_code
    told: dict[str, object] = {
        name.replace(" ", "_"): sentence for name, sentence in found.sentences.items()
    }
    return json.dumps(told | {"faults": found.faults}, indent=2), found.exit_code


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
    """The settings. Wrong ones end this process."""
    settings = _read_settings()
    if not isinstance(settings, Settings):
        print("\n".join(settings), file=sys.stderr)
        raise SystemExit(serve.WRONG_SETTING)
    return settings


def _read_settings() -> Settings | list[str]:
    """The settings, or what is wrong with them: a sentence for each fault."""
    try:
        checks.check_file(FILE)
        return Settings()
    except ValidationError as error:
        return [_sentence(problem) for problem in error.errors(include_input=False)]
    except ValueError as error:
        return [str(error)]


def _sentence(problem: ErrorDetails) -> str:
    name = str(problem["loc"][0]).upper() if problem["loc"] else ""
    message = field_faults.described(problem)
    return f"setting {name}: {message}" if name else message
