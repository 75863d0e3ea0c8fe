"""What every field and every parameter of the API means, for its description.

The sentences are in fields.toml, because the same field stands in many classes. The file is read when the description
of the API is made, which is at the first request for it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from pydantic import BaseModel

from steerserve.rules.form import Form

Schema = Mapping[str, Any]

_FIELDS, _PARAMETERS = "fields", "parameters"


class FieldTexts:
    """The descriptions of fields and parameters. `unused` has the table and the name of each entry of fields.toml that
    described nothing so far."""

    def __init__(self) -> None:
        written = resources.files(__package__).joinpath("fields.toml").read_text(encoding="utf-8")
        self._tables: dict[str, dict[str, str]] = tomllib.loads(written)
        self.unused = {(table, name) for table, texts in self._tables.items() for name in texts}
        classes = [*_subclasses(Form), *_subclasses(BaseModel)]
        self._bases = {one.__name__: one.__mro__ for one in classes}

    def described(self, document: Schema) -> dict[str, Any]:
        """The document with a description of each field and parameter that has none of its own."""
        whole: dict[str, Any] = self._with_fields(document)
        for path, operations in whole["paths"].items():
            for method, operation in operations.items():
                for parameter in operation.get("parameters", ()):
                    name = parameter["name"]
                    text = self._written(_PARAMETERS, f"{method.upper()} {path} {name}")
                    text = text or self._written(_PARAMETERS, name)
                    if text:
                        parameter.setdefault("description", text)
        return whole

    def _with_fields(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._with_fields(one) for one in node]
        if not isinstance(node, Mapping):
            return node
        made = {key: self._with_fields(value) for key, value in node.items()}
        for name, field in made.get("properties", {}).items():
            text = field.get("description") or self._text(made, name)
            if text:
                field["description"] = text
        return made

    def _text(self, schema: Schema, name: str) -> str | None:
        """What a field of an object is. A subclass has the descriptions of its bases."""
        title = str(schema.get("title", "")).partition("[")[0]
        owners = [title, *(base.__name__ for base in self._bases.get(title, ()))]
        texts = (self._written(table, name) for table in [*owners, _FIELDS])
        return next((text for text in texts if text), None)

    def _written(self, table: str, name: str) -> str | None:
        text = self._tables.get(table, {}).get(name)
        if text is not None:
            self.unused.discard((table, name))
        return text


def _subclasses(root: type) -> Iterator[type]:
    direct: list[type] = root.__subclasses__()
    for one in direct:
        if one.__module__.startswith("steerserve."):
            yield one
        yield from _subclasses(one)
