"""The arguments by which an evaluation names its service and its steering."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import steerserve
from steerserve.client import ServiceError, ServiceUnreachable
from steerserve.client.faults import ProfileNotFound
from steerserve.nouns.models.form import ModelRecord
from steerserve.rules import near_names


class WrongArgument(ValueError):
    """An argument of an evaluation is wrong, or the service refuses what it names. The message is one line."""


@dataclass(frozen=True, slots=True)
class Steering:
    """The steering of an evaluation: a profile, or fields of a request."""

    profile: str | None
    fields: dict[str, object]

    @classmethod
    def from_arguments(cls, profile: str | None, **fields: object) -> Steering:
        """The steering from arguments, whose values are objects, or JSON texts of objects.

        Raises:
            WrongArgument: naming the argument that is no object.
        """
        read: dict[str, object] = {
            name: _object(name, value) for name, value in fields.items() if value is not None
        }
        return cls(profile, read)

    def named(self, model: str) -> str:
        """The name of a model with the profile, for requests whose bodies have no field for it."""
        return model if self.profile is None else f"{model}@{self.profile}"


def refuse_unknown(
    given: Mapping[str, object],
    kind: type,
    calls: Iterable[Callable[..., object]] = (),
    more: Iterable[str] = (),
) -> None:
    """Check the arguments of a model that its class does not name itself. The libraries ignore those that they do not
    know.

    Args:
        given: the arguments.
        kind: the class of the model. What one of its bases names is known.
        calls: functions that get the arguments too.
        more: further known names.

    Raises:
        WrongArgument: naming the first argument that nothing reads.
    """
    readers = [vars(one)["__init__"] for one in kind.__mro__ if "__init__" in vars(one)]
    known = set(more)
    for reader in (*readers, *calls):
        for parameter in inspect.signature(reader).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                known.add(parameter.name)
    names = sorted(known - {"self"})
    for name in given:
        if name not in names:
            hint = near_names.hint(name, names, "argument")
            raise WrongArgument(f"{name}: unknown argument; {hint}")


def _object(name: str, value: object) -> dict[str, object]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise WrongArgument(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WrongArgument(f"{name}: must be a JSON object")
    return value


def base_url(url: str | None) -> str:
    """The address of the service: the argument, else STEERSERVE_URL, else this machine."""
    return (url or os.environ.get("STEERSERVE_URL") or "http://127.0.0.1:8000").rstrip("/")


def api_key() -> str:
    return os.environ.get("STEERSERVE_API_KEY") or "none"


def served(url: str, name: str | None) -> ModelRecord:
    """The model with this name; without one, the loaded model.

    Raises:
        WrongArgument: there is no such model.
        steerserve.ServiceError: the service does not answer.
    """
    with steerserve.Client(base_url=url) as client:
        models = list(client.models.list())
    for model in models:
        if model.name == name or (name is None and model.status == "loaded"):
            return model
    known = ", ".join(model.name for model in models) or "none"
    what = "no model is loaded" if name is None else f"no model is named {name!r}"
    raise WrongArgument(f"{what}; registered: {known}")


def named_profile(url: str, profile: str | None, *, key: str | None = None) -> str | None:
    """The name of the profile with this name or this id.

    Raises:
        WrongArgument: there is no such profile.
        steerserve.ServiceError: the service does not answer.
    """
    if profile is None:
        return None
    with steerserve.Client(base_url=url, api_key=key) as client:
        try:
            return client.profiles.find(profile).name
        except ProfileNotFound as error:
            raise WrongArgument(f"profile: {error.message}") from None


def try_fields(
    url: str,
    model: str,
    fields: Mapping[str, object],
    *,
    is_chat: bool = False,
    key: str | None = None,
) -> None:
    """Let the model write one token with the steering of an evaluation.

    Raises:
        WrongArgument: the service refuses the request.
        ServiceUnreachable: the service does not answer.
    """
    asked: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0.0, **fields}
    with steerserve.Client(base_url=url, api_key=key) as client:
        try:
            (client.chat if is_chat else client.complete)("a", **asked)
        except ServiceUnreachable:
            raise
        except ServiceError as error:
            raise WrongArgument(" ".join(error.message.split())) from None


def slots(url: str) -> int:
    """How many requests the service runs at once; 1 while it does not know.

    Raises:
        steerserve.ServiceError: the service does not answer.
    """
    with steerserve.Client(base_url=url) as client:
        return client.health.detailed().inference.queue_max_concurrent or 1
