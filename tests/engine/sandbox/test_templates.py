"""The renderer of chat templates: as the library that templates are written for, and nothing hostile gets past it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from steerserve.engine.sandbox import templates
from steerserve.engine.sandbox.templates import Templates
from steerserve.errors import Refusal
from tests.engine import models
from tests.gguf import CHATML

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


async def refused(renderer: Templates, template: str | None, messages: Any = HELLO) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await renderer.render(template, messages)
    return caught.value


SPELLED = [
    CHATML,
    "{%- for m in messages -%}\n  {{ m.role | upper }}: {{ m['content'] | trim }}\n{% endfor %}\n",
    "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "[{{ loop.index }}] {{ m.content }}{{ eos_token }}\n{% endfor %}",
    "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ {'b': 1, 'a': '<'} | tojson(sort_keys=true) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
    "{% generation %}x{% endgeneration %}{% if tools %}tools{% endif %}{{ strftime_now('%%') }}",
    "{% macro say(m) %}{{ m.content }}!{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
]


@pytest.mark.parametrize("template", SPELLED)
@pytest.mark.parametrize("messages", [HELLO, TALK], ids=["one", "several"])
async def test_a_template_gives_the_text_that_transformers_gives(
    renderer: Templates, template: str, messages: list[dict[str, Any]]
) -> None:
    tokenizer = models.tokenizer()
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    expected = tokenizer.apply_chat_template(
        messages, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    text, has_bos = await renderer.render(template, messages, bos, eos)
    assert text == expected
    assert has_bos is expected.startswith(bos)


async def test_a_trailing_assistant_message_is_continued(renderer: Templates) -> None:
    start = [{"role": "user", "content": "a"}]
    text, _ = await renderer.render(CHATML, [*start, {"role": "assistant", "content": "one two"}])
    assert text == (await renderer.render(CHATML, start))[0] + "one two"


HEADED = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
"""A template that looks at its first message, as those of many models do: it cannot render no messages."""


@pytest.mark.parametrize("template", [CHATML, HEADED + CHATML])
async def test_an_assistant_message_alone_is_continued(renderer: Templates, template: str) -> None:
    for content in ("one two", " one ", ""):
        message = {"role": "assistant", "content": content}
        text, _ = await renderer.render(template, [message])
        assert text.endswith("<|im_start|>assistant\n" + content)
        assert text.count("<|im_start|>") == 1


async def test_a_template_that_drops_an_assistant_message_is_named(renderer: Templates) -> None:
    with pytest.raises(Refusal) as caught:
        await renderer.render("{{ messages[0].role }}", [{"role": "assistant", "content": "one"}])
    assert (caught.value.code, caught.value.param) == ("INVALID_PARAMETER", "messages")


async def test_a_model_without_a_template_is_named(renderer: Templates) -> None:
    refusal = await refused(renderer, None)
    assert refusal.code == "NO_CHAT_TEMPLATE"
    assert renderer.pid is None


REFUSING = [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{% for %}", "Expected"),
    ("{{ messages[0].content.nothing.at_all }}", "has no attribute"),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{{ messages | no_such_filter }}", "no_such_filter"),
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
    assert (await renderer.render("fine", HELLO))[0] == "fine"


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
    await renderer.render("ready", HELLO)
    monkeypatch.setattr(templates, "RENDER_SECONDS", 1.0)
    assert (await refused(renderer, template)).code == "INVALID_PARAMETER"
    monkeypatch.undo()
    assert (await renderer.render("fine", HELLO))[0] == "fine"


async def test_the_process_opens_no_file_and_has_none_of_the_environment(
    renderer: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    await renderer.render("fine", HELLO)
    process = psutil.Process(renderer.pid)
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (3, 3)
    assert process.rlimit(psutil.RLIMIT_AS) == (templates.MEMORY_BYTES,) * 2
    assert "A_SECRET" not in process.environ()
    assert process.cmdline()[1:] == ["-m", "steerserve.engine.sandbox.templates"]


async def test_a_process_that_was_killed_is_replaced_and_none_is_left(renderer: Templates) -> None:
    await renderer.render("fine", HELLO)
    first = renderer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert (await renderer.render("again", HELLO))[0] == "again"
    second = psutil.Process(renderer.pid)
    assert second.pid != first
    await renderer.close()
    assert not second.is_running()
    assert (await refused(renderer, CHATML)).code == "SHUTTING_DOWN"
