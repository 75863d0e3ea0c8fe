"""Renders the chat template of a GGUF file in a process of its own, so that a hostile template does no harm.

`Templates` is its client in the control plane; `python -m steerserve.engine.sandbox.templates` is the process:
sandboxed Jinja with the functions that model templates expect, under limits of time and memory. The process opens no
file once it is ready.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from steerserve.engine.sandbox.lane import Died, Lane, limit, serve
from steerserve.engine.wire.prompts import Continuation
from steerserve.errors import Refusal

RENDER_SECONDS = 2.0
"""Seconds that the rendering of one conversation may take."""

MEMORY_BYTES = 1 << 30
"""Address space of the process."""

TEXT_MAXIMUM = 1 << 25
"""The most characters of a rendered conversation, which is more than any request and any context have."""

REASON_CHARACTERS = 200
OPEN_FILES = 3
"""Standard input, output and error."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class TemplateQuestion(msgspec.Struct):
    """A conversation to render, with the texts of the tokens that begin and end a text."""

    template: str
    messages: list[dict[str, Any]]
    bos_token: str | None = None
    eos_token: str | None = None


class TemplateAnswer(msgspec.Struct):
    """The rendered text, or the reason why there is none."""

    text: str = ""
    reason: str | None = None


# ------------------------------------------------------------------ in the control plane


class Templates:
    """Owns the process that renders templates."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "steerserve.engine.sandbox.templates"]
        self._lane = Lane("the renderer of chat templates", command)

    @property
    def pid(self) -> int | None:
        return self._lane.pid

    async def render(
        self,
        template: str | None,
        messages: list[dict[str, Any]],
        bos_token: str | None = None,
        eos_token: str | None = None,
    ) -> tuple[str, bool]:
        """A conversation as text, and whether the template itself put the BOS before it.

        A trailing assistant message is continued: the messages before it are rendered with the generation prompt, and
        its text follows verbatim.

        Raises:
            Refusal: NO_CHAT_TEMPLATE; INVALID_PARAMETER when the template refuses the messages.
        """
        if not template:
            raise Refusal("NO_CHAT_TEMPLATE", "the model has no chat template; use /v1/completions")
        conversation = Continuation(messages)
        answer = await self._ask(
            TemplateQuestion(template, conversation.messages, bos_token, eos_token)
        )
        if answer.reason is not None:
            raise Refusal(
                "INVALID_PARAMETER",
                f"the model's chat template refuses these messages: {answer.reason}",
                param="messages",
            )
        has_bos = bool(bos_token) and answer.text.startswith(bos_token or "")
        return conversation.text(answer.text), has_bos

    async def close(self) -> None:
        """End the process. Questions that wait for the process are refused."""
        await self._lane.close()

    async def _ask(self, ask: TemplateQuestion) -> TemplateAnswer:
        try:
            answer = await self._lane.ask(msgspec.json.encode(ask), RENDER_SECONDS)
            return msgspec.json.decode(answer, type=TemplateAnswer)
        except TimeoutError:
            return TemplateAnswer(reason=f"rendering takes longer than {RENDER_SECONDS:g} s")
        except Died:
            return TemplateAnswer(reason="rendering needs more memory or depth than there is")


# ------------------------------------------------------------------ in the process


class _Passed(Extension):
    """`{% generation %}`, with which templates mark text that a model wrote, has no effect here."""

    tags = {"generation"}  # noqa: RUF012 -- as the library declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class _PublicNamespace(Namespace):
    """A namespace that refuses names with a leading underscore, because such names have been used to escape from
    sandboxes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in dict(*args, **kwargs):
            _refuse_hidden(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_hidden(name)
        super().__setitem__(name, value)


def _refuse_hidden(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.TemplateError("a namespace takes no names that begin with an underscore")


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes that the library's own filter adds."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=4)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Passed, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    environment.globals["namespace"] = _PublicNamespace
    return environment.from_string(template)


def rendered(ask: TemplateQuestion) -> TemplateAnswer:
    """The conversation with a generation prompt behind it."""
    tokens = {"bos_token": ask.bos_token, "eos_token": ask.eos_token}
    try:
        text = _compiled(ask.template).render(
            messages=ask.messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **{name: token for name, token in tokens.items() if token is not None},
        )
    except MemoryError:
        return TemplateAnswer(reason="rendering needs more memory or depth than there is")
    except Exception as error:
        # a template may raise any error
        line = (str(error).splitlines() or [type(error).__name__])[0]
        return TemplateAnswer(reason=_ADDRESS.sub("", line)[:REASON_CHARACTERS])
    if len(text) > TEXT_MAXIMUM:
        return TemplateAnswer(reason=f"the text is longer than {TEXT_MAXIMUM} characters")
    return TemplateAnswer(text)


def main() -> None:
    """The process."""
    limit(MEMORY_BYTES)
    # render once now, because the library imports some modules late, above all for errors, and this process opens no
    # file later
    rendered(
        TemplateQuestion(
            "{{ strftime_now('%d %b %Y') }}{{ messages | tojson }}{{ raise_exception('') }}", []
        )
    )
    rendered(TemplateQuestion("{% if %}", []))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    serve(
        lambda body: msgspec.json.encode(
            rendered(msgspec.json.decode(body, type=TemplateQuestion))
        ),
        RENDER_SECONDS,
    )


if __name__ == "__main__":
    main()
