"""Renders the chat templates of models in processes of their own, so that a hostile template does no harm.

`Templates` is their client in the control plane; `python -m steerserve.engines.sandbox.templates` is one such process:
sandboxed Jinja with the functions that model templates expect, under limits of time and memory. The process opens no
file once it is ready. The texts are those of `apply_chat_template` of the library transformers.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from steerserve import messages as m
from steerserve.engines.sandbox.pool import ProcessPool
from steerserve.engines.sandbox.pool_process import Died, limit, serve
from steerserve.errors import Refusal
from steerserve.messages.prompts import Continuation, NamedPrompt, Prompt
from steerserve.rules.inference import fields
from steerserve.rules.steering.positions import Span

RENDER_SECONDS = 2.0
"""Seconds that the rendering of all conversations of one request may take."""

PROCESSES = 3
"""Processes that may run at once for one model: a slow conversation of a client leaves one to its other conversations,
and one to other clients."""

MEMORY_BYTES = 1 << 30
"""Address space of a process."""

TEXT_MAXIMUM = 1 << 25
"""The most characters of a request's rendered conversations, which is more than any request and any context have."""

REASON_CHARACTERS = 200
OPEN_FILES = 3
"""Standard input, output and error."""

_TOO_LARGE = "rendering needs more memory or depth than there is"
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages carry their reasoning, the most usual first."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class TemplateQuestion(msgspec.Struct):
    """Conversations to render, and the variables that the template gets beside the messages."""

    template: str
    conversations: list[list[dict[str, object]]]
    variables: dict[str, object] = {}


class TemplateAnswer(msgspec.Struct):
    """The rendered texts up to the first conversation that the template refuses, and the reason of that refusal.
    `is_broken` says that the template is no valid template, whatever the messages. `unread` are the variables that the
    template never reads."""

    texts: list[str] = []
    reason: str | None = None
    is_broken: bool = False
    unread: list[str] = []


# ------------------------------------------------------------------ in the control plane


class Templates:
    """Owns the processes that render the templates of one model."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "steerserve.engines.sandbox.templates"]
        self._pool = ProcessPool("the renderer of chat templates", command, PROCESSES)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return self._pool.pids

    async def texts(
        self, prompts: Sequence[Prompt], template: m.ChatTemplate | None
    ) -> list[m.Text]:
        """The prompts of a request as texts, in their order: either all of them are conversations, or none.

        A trailing assistant message is continued: the messages before it are rendered with the generation prompt, and
        its text follows verbatim. A text that the template itself begins with the BOS gets no second one.

        Raises:
            Refusal: NO_CHAT_TEMPLATE, also for a template that cannot be compiled; INVALID_PARAMETER when the template
                refuses the messages, or needs more time or memory than it may take. The refusal names the
                conversation. UNUSED_FIELDS_REFUSED where a strict request has variables that the template never reads.
        """
        chats = [prompt for prompt in prompts if isinstance(prompt, m.Chat)]
        if not chats:
            return [prompt for prompt in prompts if isinstance(prompt, m.Text)]
        if template is None:
            raise Refusal("NO_CHAT_TEMPLATE", "the model has no chat template; use /v1/completions")
        conversations = [Continuation(chat.messages) for chat in chats]
        variables = {**template.tokens, **chats[0].variables}
        is_located = chats[0].is_located
        asked = [c.messages for c in conversations]
        asked += [c.skeleton() for c in conversations] if is_located else []
        answer = await self._ask(
            TemplateQuestion(template.source, asked, variables), chats[0].client
        )
        if answer.is_broken:
            why = f"the model's chat template is not valid: {answer.reason}; use /v1/completions"
            raise Refusal("NO_CHAT_TEMPLATE", why)
        unused = tuple(
            f"chat_template_kwargs.{name}" for name in answer.unread if name in chats[0].variables
        )
        if chats[0].is_strict:
            fields.check_strict(list(unused))
        bos, texts = template.tokens.get("bos_token"), []
        for index, conversation in enumerate(conversations):
            with NamedPrompt(prompts, index):
                if index >= len(answer.texts):
                    raise _refused(answer.reason)
                has_bos = bool(bos) and answer.texts[index].startswith(bos or "")
                text = conversation.text(answer.texts[index])
                contents: tuple[Span, ...] = ()
                if is_located:
                    if len(chats) + index >= len(answer.texts):
                        raise _refused(answer.reason)
                    skeleton = answer.texts[len(chats) + index]
                    contents = conversation.contents(answer.texts[index], skeleton)
                texts.append(m.Text(text, not has_bos, True, contents, unused))
        return texts

    async def close(self) -> None:
        """End the processes. Questions that wait for a process are refused."""
        await self._pool.close()

    async def _ask(self, ask: TemplateQuestion, client: str) -> TemplateAnswer:
        try:
            answer = await self._pool.ask(msgspec.json.encode(ask), RENDER_SECONDS, client)
            return msgspec.json.decode(answer, type=TemplateAnswer)
        except TimeoutError:
            return TemplateAnswer(reason=f"rendering takes longer than {RENDER_SECONDS:g} s")
        except Died:
            return TemplateAnswer(reason=_TOO_LARGE)


def _refused(reason: str | None) -> Refusal:
    return Refusal(
        "INVALID_PARAMETER",
        f"the model's chat template refuses these messages: {reason}",
        param="messages",
    )


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

    def __init__(*args: object, **kwargs: object) -> None:  # a template may name a variable `self`
        self, *others = args
        values = dict(*others, **kwargs)
        for name in values:
            _refuse_hidden(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: object) -> None:
        _refuse_hidden(name)
        super().__setitem__(name, value)


def _refuse_hidden(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError("a namespace takes no names that begin with an underscore")


class _Dicts:
    """The function `dict` of templates. The class `dict` itself would give a template access to its attributes."""

    def __call__(self, *args: object, **kwargs: object) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _json(
    value: object,
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
def _compiled(template: str) -> tuple[jinja2.Template, frozenset[str]]:
    """A template, and the names of the variables that it reads."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Passed, loopcontrols]
    )
    environment.filters["tojson"] = _json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    environment.globals["dict"] = _Dicts()
    environment.globals["namespace"] = _PublicNamespace
    made = environment.from_string(template)
    return made, frozenset(meta.find_undeclared_variables(environment.parse(template)))


def rendered(ask: TemplateQuestion) -> TemplateAnswer:
    """Each conversation with a generation prompt behind it."""
    texts: list[str] = []
    unread: list[str] = []
    reason = None
    try:
        template, read = _compiled(ask.template)
        unread = [name for name in ask.variables if name not in read]
        for messages in ask.conversations:
            text = template.render(
                messages=_plain(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **ask.variables,
            )
            if len(text) + sum(map(len, texts)) > TEXT_MAXIMUM:
                reason = f"the text is longer than {TEXT_MAXIMUM} characters"
                break
            texts.append(text)
    except MemoryError:
        reason = _TOO_LARGE
    except jinja2.TemplateSyntaxError as error:
        return TemplateAnswer(
            reason=f"{_line(error).rstrip('.')}, at line {error.lineno}", is_broken=True
        )
    except Exception as error:
        # a template may raise any error
        reason = _line(error)
    return TemplateAnswer(texts, reason, unread=unread)


def _line(error: Exception) -> str:
    """The first line of an error, without the addresses of objects."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return _ADDRESS.sub("", line)[:REASON_CHARACTERS]


def _plain(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """The messages as templates expect them: without fields that are null, and with the reasoning under the names that
    templates read."""
    named = []
    for message in messages:
        fields = {name: value for name, value in message.items() if value is not None}
        reasoning = next((fields[name] for name in _REASONING if name in fields), None)
        if reasoning is not None:
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        named.append(fields)
    return named


def main() -> None:
    """The process."""
    limit(MEMORY_BYTES)
    # render once now, because the library imports some modules late, above all for errors, and this process opens no
    # file later
    first = "{{ strftime_now('%d %b %Y') }}{{ messages | tojson }}{{ raise_exception('') }}"
    rendered(TemplateQuestion(first, [[]]))
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
