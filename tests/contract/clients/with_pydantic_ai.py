"""The calls of pydantic-ai. The demo model writes `Scene` by itself when it is asked for JSON."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from told import BASE_URL, MODEL, STORY, Calls

calls = Calls("pydantic-ai-slim", "openai")
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="any"))


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


class Scene(BaseModel):
    topic: str
    place: str
    thing: str
    mood: str


def agent(**fields: Any) -> Agent[None, Any]:
    return Agent(model, model_settings={"temperature": 0, "max_tokens": 60}, **fields)


@calls.works("`Agent.run_sync`")
def run() -> None:
    assert agent().run_sync(STORY).output


@calls.works("`Agent.run_stream`")
def stream() -> None:
    async def pieces() -> list[str]:
        async with agent().run_stream(STORY) as running:
            return [piece async for piece in running.stream_text(delta=True)]

    assert "".join(asyncio.run(pieces()))


@calls.works("`NativeOutput`")
def native() -> None:
    assert isinstance(agent(output_type=NativeOutput(Weather)).run_sync(STORY).output, Weather)


@calls.works("`PromptedOutput`")
def prompted() -> None:
    assert isinstance(agent(output_type=PromptedOutput(Scene)).run_sync(STORY).output, Scene)


@calls.refused(
    "an `output_type` as it is: it becomes a tool",
    says="tools: not honoured",
    instead="`NativeOutput` or `PromptedOutput`",
)
def tool() -> None:
    agent(output_type=Weather).run_sync(STORY)


calls.tell()
