"""The calls of instructor. The demo model writes `Scene` by itself when it is asked for JSON."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from pydantic import BaseModel
from told import BASE_URL, MODEL, STORY, Calls

import openai

calls = Calls("instructor", "openai")
client = openai.OpenAI(base_url=BASE_URL, api_key="any", max_retries=0)
ask: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": STORY}],
    "max_retries": 0,
    "temperature": 0,
}


class Weather(BaseModel):
    sky: Literal["blue", "grey"]
    is_calm: bool


class Scene(BaseModel):
    topic: str
    place: str
    thing: str
    mood: str


def made(mode: instructor.Mode, wanted: type[BaseModel]) -> Any:
    return instructor.from_openai(client, mode=mode).create(response_model=wanted, **ask)


@calls.works("`Mode.JSON_SCHEMA`")
def schema() -> None:
    assert isinstance(made(instructor.Mode.JSON_SCHEMA, Weather), Weather)


@calls.works("`Mode.JSON`")
def json_object() -> None:
    assert isinstance(made(instructor.Mode.JSON, Scene), Scene)


@calls.works("`Mode.MD_JSON`")
def markdown() -> None:
    assert isinstance(made(instructor.Mode.MD_JSON, Scene), Scene)


@calls.refused(
    "`Mode.TOOLS`, its default", says="tools: not honoured", instead="`Mode.JSON_SCHEMA`"
)
def tools() -> None:
    made(instructor.Mode.TOOLS, Weather)


calls.tell()
