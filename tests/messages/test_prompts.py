"""The contents of messages in a prompt: by their characters in the rendered text, and by tokens."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from steerserve.messages.prompts import Continuation
from steerserve.messages.tokenizing import Spelling, tokens_of
from tests.refusals import refusal_of

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}<|assistant|>"
TRIMMED = PLAIN.replace("m.content", "m.content | trim")
FIRST_ONLY = "{{ messages[0].content }}</s>"
LOUD = PLAIN.replace("m.content", "m.content | upper")


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def located(template: str, *messages: dict[str, Any]) -> list[tuple[str, str]]:
    """The role and the characters of each content that is found."""
    render = jinja2.Template(template).render
    conversation = Continuation(messages)
    rendered = render(messages=conversation.messages)
    skeleton = render(messages=conversation.skeleton())
    text = conversation.text(rendered)
    spans = conversation.contents(rendered, skeleton)
    return [(span.role, text[span.start : span.end]) for span in spans]


@pytest.mark.parametrize(
    ("template", "messages", "found"),
    [
        (
            PLAIN,
            [said("system", "user"), said("user", " hello </s>")],
            [("system", "user"), ("user", " hello </s>")],
        ),
        (TRIMMED, [said("user", " hello\n")], [("user", "hello")]),
        (PLAIN, [said("user", "a"), said("assistant", "b")], [("user", "a"), ("assistant", "b")]),
        (PLAIN, [said("assistant", "b ")], [("assistant", "b ")]),
        (FIRST_ONLY, [said("user", "a"), said("user", "b")], [("user", "a")]),
    ],
)
def test_contents_are_found_where_the_template_writes_them(
    template: str, messages: list[dict[str, Any]], found: list[tuple[str, str]]
) -> None:
    assert located(template, *messages) == found


def test_a_template_that_changes_contents_is_refused() -> None:
    refused = refusal_of(located, LOUD, said("user", "hello"))
    assert refused.code == "INVALID_INTERVENTION"


@pytest.mark.parametrize(
    ("start", "end", "tokens"),
    [(0, 2, (1, 2)), (1, 3, (1, 4)), (2, 3, (2, 4)), (3, 4, (4, 5)), (4, 4, (0, 0))],
)
def test_a_token_belongs_to_the_characters_of_which_it_has_a_part(
    start: int, end: int, tokens: tuple[int, int]
) -> None:
    # a special token, `ab`, one character in two tokens, `c`
    spelling = Spelling(
        "ab\u00e9c", [0, 1, 2, 3, 4], ["<s>", "ab", "\ufffd", "\ufffd", "c"], [0, 0, 2, 2, 3]
    )
    assert tokens_of(spelling, start, end) == tokens
