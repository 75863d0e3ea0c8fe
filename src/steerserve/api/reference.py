"""/docs: the API as a page for people.

The page is made from the description at /openapi.json. It has no scripts and loads nothing from another server.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

Schema = Mapping[str, Any]

POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1a1a1a; background: #fff }
a { color: #0b57d0 } code { font-family: ui-monospace, monospace; font-size: .92em }
details { border-top: 1px solid #ddd; padding: .4rem 0 } summary { cursor: pointer }
summary b { display: inline-block; min-width: 4.5rem } table { border-collapse: collapse; margin: .5rem 0 }
th, td { border: 1px solid #ddd; padding: .25rem .6rem; text-align: left; vertical-align: top }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616 } a { color: #8ab4f8 } details, th, td { border-color: #444 }
}
"""
_BOUNDS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} entries"),
    ("maxItems", "at most {} entries"),
    ("maxProperties", "at most {} entries"),
)


def router(description: Callable[[], Schema]) -> APIRouter:
    """`description` makes the OpenAPI document. Each answer is made once, in a thread, because that takes a second."""
    routes = APIRouter(include_in_schema=False)
    making = asyncio.Lock()

    async def answer_in_thread(answer: Callable[[], bytes]) -> bytes:
        async with making:
            return await asyncio.to_thread(answer)

    @cache
    def routes_page() -> bytes:
        return page(description()["info"], "".join(_sections(description())))

    @cache
    def document() -> bytes:
        return json.dumps(description(), ensure_ascii=False, separators=(",", ":")).encode()

    @routes.get("/docs")
    async def reference() -> Response:
        return html(await answer_in_thread(routes_page))

    @routes.get("/openapi.json")
    async def openapi() -> Response:
        return Response(await answer_in_thread(document), media_type="application/json")

    return routes


def page(info: Mapping[str, str], body: str) -> bytes:
    """A page with the title and the version of an OpenAPI document as its heading."""
    title = escape(f"{info['title']} {info['version']}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    whole = (
        f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>"
    )
    return whole.encode()


def html(content: bytes) -> Response:
    return Response(content, media_type="text/html", headers=POLICY)


def _sections(document: Schema) -> Iterator[str]:
    yield (
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. Routes under <code>/v1</code> are '
        "those of the OpenAI API. Routes under <code>/api</code> answer <code>{success, data, error}</code>.</p>"
    )
    schemas = document.get("components", {}).get("schemas", {})
    tagged: defaultdict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            tagged[tag].append(_operation(method, path, operation, schemas))
    for tag, parts in tagged.items():
        yield f"<h2>{escape(tag)}</h2>{''.join(parts)}"
    parts = [_schema(name, schema) for name, schema in schemas.items() if _is_shown(name)]
    yield f"<h2>Bodies, answers and events</h2>{''.join(parts)}"


def _is_shown(name: str) -> bool:
    """Whether a schema has a place of its own on the page. The envelopes of answers have none: their routes show the
    data in them."""
    return not name.startswith("Answer_")


def _operation(method: str, path: str, operation: Schema, schemas: Schema) -> str:
    summary = (
        f"<summary><b>{method.upper()}</b> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary>"
    )
    rows = [
        (
            parameter["name"],
            f"{parameter['in']}, {_type(parameter['schema'])}",
            parameter.get("required", False),
            parameter.get("description", ""),
        )
        for parameter in operation.get("parameters", ())
    ]
    about = _paragraph(operation.get("description", ""))
    body = "".join(
        f"<p>Body, <code>{escape(kind)}</code>: {_type(media.get('schema', {}))}</p>"
        f"{_fields(media.get('schema', {}))}"
        for kind, media in operation.get("requestBody", {}).get("content", {}).items()
    )
    responses = operation.get("responses", {})
    answers = "".join(
        _answer(status, response["content"]["application/json"]["schema"], schemas)
        for status, response in responses.items()
        if status.startswith("2") and "application/json" in response.get("content", {})
    )
    statuses = f"<p>Answers: {escape(', '.join(sorted(responses)))}</p>"
    return f"<details>{summary}{about}{_table(rows)}{body}{answers}{statuses}</details>"


def _answer(status: str, schema: Schema, schemas: Schema) -> str:
    """The answer of one status, folded: its type and, where it is one object, its fields. Of an answer in an envelope
    only the data is shown."""
    kinds = [_data(kind, schemas) for kind in schema.get("anyOf", [schema])]
    words = f"Answer {escape(status)}: {' or '.join(map(_type, kinds))}"
    first = _resolved(kinds[0], schemas)
    fields = _fields(first, "always")
    if not fields:
        return f"<p>{words}</p>"
    about = _paragraph(first.get("description", ""))
    return f"<details><summary>{words}</summary>{about}{fields}</details>"


def _data(schema: Schema, schemas: Schema) -> Schema:
    whole = _resolved(schema, schemas)
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    data: Schema = schema if _is_shown(name) else whole["properties"]["data"]
    return data


def _resolved(schema: Schema, schemas: Schema) -> Schema:
    """The schema that a reference names, or the schema itself."""
    named: Schema = schemas.get(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    return named


def _schema(name: str, schema: Schema) -> str:
    about = _paragraph(schema.get("description", ""))
    fields = _fields(schema) or f"<p>{_type(schema)}</p>"
    return f'<h3 id="{escape(name)}">{escape(name)}</h3>{about}{fields}'


def _fields(schema: Schema, needed: str = "required") -> str:
    """The table of an object's fields; nothing for other schemas. `needed` is the word for a field that is never
    missing."""
    required = schema.get("required", ())
    return _table(
        [
            (name, _type(field), name in required, field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ],
        needed,
    )


def _table(rows: list[tuple[str, str, bool, str]], needed: str = "required") -> str:
    if not rows:
        return ""
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{needed if is_needed else ''}</td>"
        f"<td>{escape(words)}</td></tr>"
        for name, kind, is_needed, words in rows
    )
    return f"<table><tr><th>name</th><th>type</th><th></th><th>meaning</th></tr>{lines}</table>"


def _type(schema: Schema) -> str:
    """A schema in words, as HTML."""
    if "$ref" in schema:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in values)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            kinds = dict.fromkeys(_type(part) for part in schema[key])
            return " or ".join(kinds) + _default(schema)
    kind = schema.get("type", "any")
    words = escape(" or ".join(kind) if isinstance(kind, list) else str(kind))
    if "prefixItems" in schema:
        words = f"list of {', '.join(map(_type, schema['prefixItems']))}"
    elif "items" in schema:
        words = f"list of {_type(schema['items'])}"
    elif isinstance(schema.get("additionalProperties"), Mapping):
        words = f"object of {_type(schema['additionalProperties'])}"
    bounds = [form.format(_number(schema[key])) for key, form in _BOUNDS if key in schema]
    return ", ".join([words, *bounds]) + _default(schema)


def _default(schema: Schema) -> str:
    default = schema.get("default")
    return "" if default is None else f", by default <code>{escape(str(default))}</code>"


def _number(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"{value:,.0f}"


def _paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>" if words else ""
