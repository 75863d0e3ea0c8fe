"""The server of the Model Context Protocol: lists the tools, calls them, and says refusals as errors of a tool."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, ErrorDetails

from steerserve import __version__
from steerserve.agents.changing import Changing
from steerserve.agents.reading import Reading
from steerserve.client import AsyncClient, ServiceError
from steerserve.rules import field_faults, near_names

INSTRUCTIONS = """Look inside a language model that runs in steerserve, and steer it by features of sparse autoencoders
(SAEs). Begin with `status`. Find features with search_features, text_features or contrast_features, see what they do
with get_feature, then steer single requests: generate, score and compare take steering of their own."""
NO_LOADING = {"X-Service-Load-Policy": "refuse"}
"""No tool that writes or scores loads a model, also where another client changes the model meanwhile."""


class Tool:
    """A method as a tool: its name, the schema of its arguments, and its calls."""

    def __init__(self, method: Any, *, is_change: bool) -> None:
        self._arguments: TypeAdapter[Awaitable[object]] = TypeAdapter(method)
        self.described = types.Tool(
            name=method.__name__,
            description=inspect.getdoc(method),
            input_schema=self._arguments.json_schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=not is_change, destructive_hint=is_change, open_world_hint=False
            ),
        )

    async def call(self, arguments: Mapping[str, object]) -> types.CallToolResult:
        """Arguments that are missing, unknown or of another type are an error of the tool, as refusals are."""
        try:
            answer = await self._arguments.validate_python(ArgsKwargs((), dict(arguments)))
        except ValidationError as error:
            told = "; ".join(map(self._fault, error.errors(include_url=False)))
            return _result({"code": "INVALID_ARGUMENTS", "message": told}, is_error=True)
        except ServiceError as error:
            return _result(
                {
                    "code": error.code,
                    "message": error.message,
                    "status": error.status,
                    "details": error.details,
                    "retry_after": error.retry_after,
                },
                is_error=True,
            )
        return _result(msgspec.to_builtins(answer, str_keys=True))

    def _fault(self, fault: ErrorDetails) -> str:
        """What is wrong with an argument, after its place."""
        where = ".".join(map(str, fault["loc"]))
        if fault["type"] == "unexpected_keyword_argument":
            known = list(self.described.input_schema["properties"])
            return f"{where}: unknown argument; {near_names.hint(where, known, 'argument')}"
        return f"{where}: {field_faults.described(fault)}"


def _result(content: dict[str, object], *, is_error: bool = False) -> types.CallToolResult:
    text = msgspec.json.encode(content).decode()
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=content,
        is_error=is_error,
    )


def tools(client: AsyncClient, *, allow_changes: bool) -> dict[str, Tool]:
    """The tools by their names: the public methods of `Reading`, and with `allow_changes` those of `Changing`."""
    found = [Tool(one, is_change=False) for one in _methods(Reading(client))]
    if allow_changes:
        found += [Tool(one, is_change=True) for one in _methods(Changing(client))]
    return {one.described.name: one for one in found}


def _methods(source: object) -> list[Callable[..., Awaitable[object]]]:
    return [getattr(source, name) for name in vars(type(source)) if not name.startswith("_")]


def make_server(client: AsyncClient, *, allow_changes: bool) -> Server[object]:
    """The server for a client of a service."""
    known = tools(client, allow_changes=allow_changes)

    async def list_tools(
        _: ServerRequestContext[object], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[one.described for one in known.values()])

    async def call_tool(
        _: ServerRequestContext[object], asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = known.get(asked.name)
        if tool is None:
            told = f"no tool is named {asked.name!r}; tools that change the service need --allow-changes"
            return _result({"code": "UNKNOWN_TOOL", "message": told}, is_error=True)
        return await tool.call(asked.arguments or {})

    return Server(
        "steerserve",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def run(*, allow_changes: bool) -> None:
    """Serve over the standard input and output until the input ends."""
    anyio.run(_serve, allow_changes)


async def _serve(allow_changes: bool) -> None:
    async with AsyncClient(headers=NO_LOADING) as client, stdio_server() as (read, write):
        server = make_server(client, allow_changes=allow_changes)
        await server.run(read, write, server.create_initialization_options())
