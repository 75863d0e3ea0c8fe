"""One request of the net, and the plain bodies of the routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.net.answers.options import STORY

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"
COMPARE = "/api/compare"

PLAIN: dict[str, dict[str, Any]] = {
    CHAT: {"model": "demo", "messages": STORY, "max_tokens": 3, "temperature": 0},
    TEXT: {"model": "demo", "prompt": "One day the", "max_tokens": 3, "temperature": 0},
    RESPONSES: {
        "model": "demo",
        "input": "Tell me a story.",
        "max_output_tokens": 3,
        "temperature": 0,
    },
    EMBEDDINGS: {"model": "demo", "input": "One day"},
    COMPARE: {"prompt": "One day the", "max_tokens": 3},
}


@dataclass(frozen=True)
class Case:
    """A request, by its name within its group.

    Attributes:
        group: the file that has the answer.
        world: the service that is asked; `worlds.WORLDS` has it by its name.
        scene: what the operator of this service has set before.
        body: the fields of the body, or its text.
        then: paths of `/api` that are asked after the answer, with their methods.
    """

    name: str
    group: str
    path: str
    body: Mapping[str, Any] | str
    world: str = "checkpoint"
    scene: str = "attached"
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    then: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        return f"{self.group}: {self.name}"


def body_of(path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The plain body of a route with these fields, each under its name there."""
    named = dict(fields)
    if path == RESPONSES and "max_tokens" in named:
        named["max_output_tokens"] = named.pop("max_tokens")
    return PLAIN[path] | named
