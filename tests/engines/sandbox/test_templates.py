"""The renderer of chat templates: as the library that templates are written for, and nothing hostile gets past it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.sandbox import templates
from steerserve.engines.sandbox.templates import Templates
from steerserve.errors import Refusal
from tests.gguf import CHATML
from tests.worker import models

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello <b>é</b>"}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    *HELLO,
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "And?"},
]


@pytest.fixture
async def renderer() -> AsyncIterator[Templates]:
    renderer = Templates()
    yield renderer
    await renderer.close()


async def rendered(
    renderer: Templates, template: str, messages: Any = HELLO, **tokens: str
) -> m.Text:
    (text,) = await renderer.texts([m.Chat(messages)], m.ChatTemplate(template, tokens))
    return text


async def refused(renderer: Templates, template: str, messages: Any = HELLO) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await rendered(renderer, template, messages)
    return caught.value


@pytest.mark.parametrize(
    ("template", "unused"),
    [
        ("{{ messages[0].content }}", ["chat_template_kwargs.mood", "chat_template_kwargs.size"]),
        ("{% if mood is defined %}{% endif %}", ["chat_template_kwargs.size"]),
        ("{% set size = size | default(1) %}{{ size }}", ["chat_template_kwargs.mood"]),
        ("{% if false %}{{ size }}{% endif %}", ["chat_template_kwargs.mood"]),
        (
            "{% macro m() %}{{ mood }}{% endmacro %}{% set size = 2 %}",
            ["chat_template_kwargs.size"],
        ),
    ],
)
async def test_the_variables_that_a_template_never_reads_are_told(
    renderer: Templates, template: str, unused: list[str]
) -> None:
    chat = m.Chat(HELLO, {"mood": None, "size": 1})
    (text,) = await renderer.texts([chat], m.ChatTemplate(template, {"bos_token": "<s>"}))
    assert list(text.unused) == unused


KINDS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "é\u2028"}], "name": "Ann"},
    {"role": "assistant", "content": None, "thinking": "why", "tool_calls": [{"id": 1.0}]},
    {"role": "tool", "content": "", "reasoning": None, "extra": {"b": [1, True, None], "a": "<&>"}},
]
"""Messages with parts, fields beyond the protocol, and fields that are null."""

SPELLED = [
    CHATML,
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
    "{% endfor %}{% endif %}|{{ m.name is defined }}{{ m.content is defined }}{{ m.keys() | list }}{% endfor %}",
    "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }}/{{ m | tojson }}{% endfor %}",
    "{{ messages | tojson(ensure_ascii=true, separators=(',', ':')) }}{{ messages | length }}",
    "{{ tools is none }}{{ documents is none }}{{ tools is defined }}{{ add_generation_prompt }}{{ nothing }}",
    "{% set d = dict(a=1, b=2) %}{{ d.items() | list }}{{ dict.fromkeys(['x'], 0) }}{{ dict(d, c=3) | tojson }}",
    "{% set ns = namespace(self=1, n=messages) %}{{ ns.self }}{{ ns.n[-1].role }}{{ messages[::-1][0].role }}",
    "{% for m in messages if m.role != 'system' %}{% if loop.first %}{% continue %}{% endif %}{{ loop.revindex }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{{ loop.previtem.role }}{% else %}none{% endfor %}",
    "{% macro box(c, n=2) %}{{ caller() }}{{ c * n }}{% endmacro %}{% call box('x') %}in{% endcall %}",
    "{%- generation -%}  kept {%- endgeneration %}\n   {% filter upper %}a{{ 'b' }}{% endfilter %}\n\n",
    "{{ 'a b'.split() }}{{ '%s-%05.1f' % ('x', 2) }}{{ 'x{}'.format(1) }}{{ ' t '.strip() | indent(2) }}{{ 7 // 2 }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') | join(',') }}{{ range(3) | list }}",
    "{% raw %}{{ not a variable }}{% endraw %}{# a comment #}  {{- '<b>' | e }}{{ '&' | safe }}{{ 1.0 }}{{ none }}",
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}{{ sep_token is defined }}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}"
    "{% set loop_messages = messages %}{% endif %}{{ loop_messages | length }}",
    "{%- for m in messages -%}\n  {{ m.role | upper }}: {{ m['content'] | trim }}\n{% endfor %}\n",
    "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "[{{ loop.index }}] {{ m.content }}{{ eos_token }}\n{% endfor %}",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'b': 1, 'a': '<'} | tojson(sort_keys=true) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{% generation %}x{% endgeneration %}{% if tools %}tools{% endif %}{{ strftime_now('%%') }}",
    "{% macro say(m) %}{{ m.content }}!{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
]


@pytest.mark.parametrize("messages", [HELLO, TALK, KINDS], ids=["one", "several", "kinds"])
async def test_templates_give_the_texts_that_transformers_gives(
    renderer: Templates, messages: list[dict[str, Any]]
) -> None:
    tokenizer, texts = models.tokenizer(), 0
    for template in SPELLED:
        try:
            expected = tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True
            )
        except Exception:  # where the library refuses the messages, so does the renderer
            assert (await refused(renderer, template, messages)).code == "INVALID_PARAMETER"
            continue
        text = await rendered(renderer, template, messages, **tokenizer.special_tokens_map)
        assert text.text == expected, template
        assert text.special is not expected.startswith(tokenizer.bos_token)
        assert text.is_chat
        texts += 1
    assert texts >= len(SPELLED) - 4


async def test_variables_of_the_client_stand_before_the_tokens_of_the_model(
    renderer: Templates,
) -> None:
    tokenizer, variables = models.tokenizer(), {"bos_token": "[B]", "size": 2**60, "on": [None]}
    template = "{{ bos_token }}{{ eos_token }}{{ size }}{{ on | tojson }}"
    expected = tokenizer.apply_chat_template(
        HELLO, chat_template=template, tokenize=False, add_generation_prompt=True, **variables
    )
    known = m.ChatTemplate(template, tokenizer.special_tokens_map)
    (text,) = await renderer.texts([m.Chat(HELLO, variables)], known)
    assert text == m.Text(expected, special=True, is_chat=True)


async def test_the_conversations_of_a_request_are_rendered_in_their_order(
    renderer: Templates,
) -> None:
    template = m.ChatTemplate("{{ messages[0].content }}{{ raise_exception('no') if messages[1] }}")
    chats = [m.Chat([{"role": "user", "content": name}]) for name in "abc"]
    assert [t.text for t in await renderer.texts(chats, template)] == ["a", "b", "c"]
    with pytest.raises(Refusal) as caught:
        await renderer.texts([chats[0], m.Chat(TALK), chats[1]], template)
    assert (caught.value.code, caught.value.param) == ("INVALID_PARAMETER", "extra_messages[0]")
    assert caught.value.message.startswith("extra_messages[0]: the model's chat template refuses")


async def test_texts_are_not_rendered(renderer: Templates) -> None:
    plain = [m.Text("{{ 1 }}", special=False), m.Text("b")]
    assert await renderer.texts(plain, None) == plain
    assert renderer.pids == []


async def test_a_trailing_assistant_message_is_continued(renderer: Templates) -> None:
    start = [{"role": "user", "content": "a"}]
    text = await rendered(renderer, CHATML, [*start, {"role": "assistant", "content": "one two"}])
    assert text.text == (await rendered(renderer, CHATML, start)).text + "one two"


HEADED = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
"""A template that looks at its first message, as those of many models do: it cannot render no messages."""


@pytest.mark.parametrize("template", [CHATML, HEADED + CHATML])
async def test_an_assistant_message_alone_is_continued(renderer: Templates, template: str) -> None:
    for content in ("one two", " one ", ""):
        message = {"role": "assistant", "content": content}
        text = (await rendered(renderer, template, [message])).text
        assert text.endswith("<|im_start|>assistant\n" + content)
        assert text.count("<|im_start|>") == 1


async def test_a_template_that_drops_an_assistant_message_is_named(renderer: Templates) -> None:
    only = [{"role": "assistant", "content": "one"}]
    refusal = await refused(renderer, "{{ messages[0].role }}", only)
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "messages")


async def test_a_model_without_a_template_is_named(renderer: Templates) -> None:
    with pytest.raises(Refusal) as caught:
        await renderer.texts([m.Chat(HELLO)], None)
    assert caught.value.code == "NO_CHAT_TEMPLATE"
    assert renderer.pids == []


REFUSING = [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{{ messages[0].content.nothing.at_all }}", "has no attribute"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ raise_exception(raise_exception) }}", "function"),
]


@pytest.mark.parametrize(("template", "reason"), REFUSING)
async def test_a_template_that_refuses_the_messages_is_the_clients_to_know(
    renderer: Templates, template: str, reason: str
) -> None:
    refusal = await refused(renderer, template)
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "messages")
    assert refusal.message.startswith("the model's chat template refuses these messages: ")
    assert reason in refusal.message
    assert " at 0x" not in refusal.message
    assert (await rendered(renderer, "fine")).text == "fine"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "Expected an expression, got 'end of statement block', at line 1"),
        ("fine\n{{ messages | no_such_filter }}", "No filter named 'no_such_filter', at line 2"),
        ("{% for m in messages %}{{ m.content }", "unexpected '}', at line 1"),
    ],
)
async def test_a_template_that_is_not_valid_is_no_fault_of_the_messages(
    renderer: Templates, template: str, reason: str
) -> None:
    refusal = await refused(renderer, template)
    assert (refusal.code, refusal.param) == ("NO_CHAT_TEMPLATE", None)
    why = f"the model's chat template is not valid: {reason}; use /v1/completions"
    assert refusal.message == why


ESCAPES = [
    "{{ lipsum.__globals__['os'].popen('touch FILE').read() }}",
    "{{ cycler.__init__.__globals__.os.system('touch FILE') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('FILE', 'w') }}",
    "{{ messages.append(1) }}",
    "{{ ''.format.__self__ }}{{ '{0.__class__.__mro__}'.format('') }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ namespace(__init__=1) }}",
    "{% include 'FILE' %}",
]


@pytest.mark.parametrize("template", ESCAPES)
async def test_a_template_leaves_the_sandbox_nowhere(
    renderer: Templates, template: str, tmp_path: Path
) -> None:
    file = tmp_path / "made"
    refusal = await refused(renderer, template.replace("FILE", str(file)))
    assert refusal.code == "INVALID_PARAMETER"
    assert not file.exists()


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ 'a' * 4 * 10**7 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set ns = namespace(s='aaaaaaaa') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
]


@pytest.mark.parametrize("template", ENDLESS)
async def test_time_memory_and_length_are_bounded(
    renderer: Templates, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rendered(renderer, "ready")
    monkeypatch.setattr(templates, "RENDER_SECONDS", 1.0)
    assert (await refused(renderer, template)).code == "INVALID_PARAMETER"
    monkeypatch.undo()
    assert (await rendered(renderer, "fine")).text == "fine"


async def test_a_slow_conversation_delays_no_short_one(
    renderer: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "RENDER_SECONDS", 60.0)
    template = "{% if messages[1] %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template += "{% endif %}{{ messages[0].content }}"
    slow = asyncio.ensure_future(rendered(renderer, template, TALK))
    assert (await rendered(renderer, template)).text == HELLO[0]["content"]
    assert not slow.done()
    slow.cancel()
    await asyncio.wait([slow])
    assert (await rendered(renderer, template)).text == HELLO[0]["content"]


async def test_a_process_opens_no_file_and_has_none_of_the_environment(
    renderer: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    here = ZoneInfo("Pacific/Kiritimati")
    before = datetime.now(here).strftime("%Y %m %d %H")
    text = (await rendered(renderer, "{{ strftime_now('%Y %m %d %H') }}")).text
    assert before <= text <= datetime.now(here).strftime("%Y %m %d %H")
    (pid,) = renderer.pids
    process = psutil.Process(pid)
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (3, 3)
    assert process.rlimit(psutil.RLIMIT_AS) == (templates.MEMORY_BYTES,) * 2
    assert "A_SECRET" not in process.environ()
    assert process.cmdline()[1:] == ["-m", "steerserve.engines.sandbox.templates"]


async def test_a_process_that_was_killed_is_replaced_and_none_is_left(renderer: Templates) -> None:
    await rendered(renderer, "fine")
    (first,) = renderer.pids
    os.kill(first, signal.SIGKILL)
    assert (await rendered(renderer, "again")).text == "again"
    assert first not in renderer.pids
    others = [psutil.Process(pid) for pid in renderer.pids]
    assert others
    await renderer.close()
    assert not any(process.is_running() for process in others)
    assert (await refused(renderer, CHATML)).code == "SHUTTING_DOWN"
