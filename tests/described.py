"""Holds the answers of `/api` and `/v1` to the description that the service gives of itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import httpx2
import jsonschema_rs

BASE = "urn:description"
"""The name under which a validator finds the parts of the description."""
SURFACES = ("/api/", "/v1/")
SHOWN = 5
"""The most faults of one answer that are shown."""
_PARAMETER = re.compile(r"\\{(\w+)\\}")
_WITH_SLASHES = ("repo_id", "name")
"""The parameters whose values may have slashes."""


class Description:
    """An OpenAPI document, with a validator for each answer that it describes."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._registry = jsonschema_rs.Registry([(BASE, document)])
        self._paths: dict[str, Any] = document["paths"]
        self._patterns = [(_pattern(path), path) for path in self._paths]
        self._templates: dict[tuple[str, str], str | None] = {}
        self._validators: dict[tuple[str, ...], jsonschema_rs.Validator | None] = {}

    def faults(self, method: str, path: str, status: int, body: Any) -> list[str]:
        """How the JSON of an answer differs from its description; an empty list where it does not. A refusal has the
        same form everywhere, so the route of a refusal need not be described."""
        if status >= 400:
            refused = "RefusedAnswer" if path.startswith("/api/") else "FaultBody"
            place: tuple[str, ...] = ("components", "schemas", refused)
        else:
            template = self._template(method, path)
            if template is None:
                return ["the route is not described"]
            answer = ("responses", str(status), "content", "application/json", "schema")
            place = ("paths", template, method.lower(), *answer)
        validator = self._validator(place)
        if validator is None:
            return [f"the status {status} is not described"]
        if validator.is_valid(body):
            return []
        return list(islice(_sentences(validator.iter_errors(body)), SHOWN))

    def component(self, name: str, body: Any) -> list[str]:
        """How a value differs from a named schema."""
        validator = self._validator(("components", "schemas", *name.split("/")))
        assert validator is not None
        return list(islice(_sentences(validator.iter_errors(body)), SHOWN))

    # ------------------------------------------------------------- inside

    def _template(self, method: str, path: str) -> str | None:
        """The path of the description that a request means: the first one that fits, as the service chooses."""
        key = (method, path)
        if key not in self._templates:
            self._templates[key] = next(
                (
                    template
                    for pattern, template in self._patterns
                    if method.lower() in self._paths[template] and pattern.fullmatch(path)
                ),
                None,
            )
        return self._templates[key]

    def _validator(self, place: tuple[str, ...]) -> jsonschema_rs.Validator | None:
        if place not in self._validators:
            part: Any = self._document
            for step in place:
                part = part.get(step, {})
            pointer = "/".join(step.replace("~", "~0").replace("/", "~1") for step in place)
            schema = {"$ref": f"{BASE}#/{quote(pointer, safe='/~')}"}
            self._validators[place] = (
                jsonschema_rs.validator_for(schema, registry=self._registry) if part else None
            )
        return self._validators[place]


def is_described(method: str, path: str, content_type: str | None) -> bool:
    """Whether an answer is JSON of one of the two surfaces."""
    return path.startswith(SURFACES) and content_type == "application/json" and method != "HEAD"


class Held:
    """A hook for clients. It fails the test that gets an answer which is not as described.

    Args:
        document: returns the OpenAPI document. The first document that is read in a process is used for all services.
    """

    _description: ClassVar[Description | None] = None

    def __init__(self, document: Callable[[], dict[str, Any]]) -> None:
        self._document = document

    @property
    def description(self) -> Description:
        if Held._description is None:
            Held._description = Description(self._document())
        return Held._description

    def __call__(self, answer: httpx2.Response) -> None:
        request = answer.request
        path = unquote(request.url.raw_path.decode().partition("?")[0])
        if not is_described(request.method, path, answer.headers.get("content-type")):
            return
        answer.read()
        faults = self.description.faults(request.method, path, answer.status_code, answer.json())
        assert not faults, f"{request.method} {path} answers {answer.status_code}: {faults}"


def _pattern(template: str) -> re.Pattern[str]:
    def of(parameter: re.Match[str]) -> str:
        return ".+" if parameter[1] in _WITH_SLASHES else "[^/]+"

    return re.compile(_PARAMETER.sub(of, re.escape(template)), re.DOTALL)


def _sentences(errors: Iterator[jsonschema_rs.ValidationError]) -> Iterator[str]:
    """Each error with its place. Where a value fits none of several schemas, the errors of each follow."""
    for error in errors:
        yield f"{'/'.join(map(str, error.instance_path)) or 'body'}: {error.message[:500]}"
        for branch in getattr(error.kind, "context", None) or ():
            for inner in branch:
                yield f"  {'/'.join(map(str, inner.instance_path))}: {inner.message[:200]}"
