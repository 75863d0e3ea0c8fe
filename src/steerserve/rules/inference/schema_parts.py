"""The parts of a JSON Schema: its subschemas and their JSON pointers, the targets of `$ref`, and cycles of references.

A schema is a value that `json.loads` gives. Parts are compared by identity, because their pointers can be long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any] | bool
Path = tuple[str, ...]

ANNOTATIONS = frozenset(("title", "description", "default", "examples"))
"""Keywords that do not restrict an instance. Their values are not checked."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
REFERENCE = "#/$defs/"


def pointer(path: Path) -> str:
    """The path as a JSON pointer (RFC 6901)."""
    return "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in path)


def children(keyword: str, value: object) -> Iterator[tuple[Path, object]]:
    """The subschemas directly under a keyword, with their paths relative to the schema of that keyword."""
    if keyword in ("properties", "$defs") and isinstance(value, dict):
        for name, part in value.items():
            yield (keyword, name), part
    elif keyword == "anyOf" and isinstance(value, list):
        for index, part in enumerate(value):
            yield (keyword, str(index)), part
    elif keyword in ("items", "additionalProperties"):
        yield (keyword,), value


def parts(schema: object, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schema and all its subschemas that are objects, in document order."""
    if isinstance(schema, dict):
        yield path, schema
        for keyword, value in schema.items():
            for step, part in children(keyword, value):
                yield from parts(part, (*path, *step))


def path_of(reference: str) -> Path:
    """The path that a reference of the form `#/$defs/...` names."""
    tokens = unquote(reference.removeprefix("#/")).split("/")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


def resolve(root: Schema, reference: str) -> Any:
    """The part of the document that a reference of the form `#/$defs/...` names, or None."""
    part: object = root
    for token in path_of(reference):
        if isinstance(part, dict):
            part = part.get(token)
        elif isinstance(part, list) and token in map(str, range(len(part))):
            part = part[int(token)]
        else:
            return None
    return part


def idle_references(root: Schema) -> set[int]:
    """Identities of the parts whose `$ref` closes a cycle that applies a schema to the same instance again.

    On such a cycle a validator recurses without end.
    """
    idle: set[int] = set()
    open_parts: set[int] = set()
    done: set[int] = set()
    for _, start in parts(root):
        stack = [(start, _same_instance(root, start))]
        while stack:
            part, targets = stack[-1]
            open_parts.add(id(part))
            for target in targets:
                if id(target) in open_parts:
                    idle.add(id(part))
                elif id(target) not in done:
                    stack.append((target, _same_instance(root, target)))
                    break
            else:
                open_parts.discard(id(part))
                done.add(id(part))
                stack.pop()
    return idle


def is_endless(root: Schema) -> bool:
    """Whether no finite document can satisfy a schema, because a required part contains itself.

    The function collects the parts that some finite instance may satisfy, until no part is added. It takes every scalar
    keyword as satisfiable.
    """
    every = [part for _, part in parts(root)][::-1]
    targets = {id(part): resolve(root, part["$ref"]) for part in every if "$ref" in part}
    finite: set[int] = set()
    size = -1
    while size < len(finite):
        size = len(finite)
        for part in every:
            if id(part) not in finite and _may_end(part, targets.get(id(part), True), finite):
                finite.add(id(part))
    return not _is_finite(root, finite)


def _same_instance(root: Schema, part: dict[str, object]) -> Iterator[dict[str, object]]:
    """The parts that a validator applies to the same instance as this part: its `anyOf` branches and its `$ref`."""
    branches = part.get("anyOf", [])
    reached = list(branches) if isinstance(branches, list) else []
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith(REFERENCE):
        reached.append(resolve(root, reference))
    return (target for target in reached if isinstance(target, dict))


def _is_finite(part: Schema, finite: set[int]) -> bool:
    return part if isinstance(part, bool) else id(part) in finite


def _may_end(part: dict[str, Any], target: Schema, finite: set[int]) -> bool:
    if not _is_finite(target, finite):
        return False
    if "anyOf" in part and not any(_is_finite(branch, finite) for branch in part["anyOf"]):
        return False
    if "enum" in part or "const" in part:
        return True
    kinds = part.get("type", TYPES)
    types = [kinds] if isinstance(kinds, str) else kinds
    if any(kind not in ("array", "object") for kind in types):
        return True
    if "array" in types and (
        not part.get("minItems") or _is_finite(part.get("items", True), finite)
    ):
        return True
    members, other = part.get("properties", {}), part.get("additionalProperties", True)
    required = [members.get(name, other) for name in part.get("required", [])]
    return "object" in types and all(_is_finite(member, finite) for member in required)
