"""GGUF models on the real llama.cpp: their text, their counts, their limits, and what is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from steerserve import messages as m
from steerserve.engines.gguf.client import GgufEngine, Options
from steerserve.engines.gguf.server import LlamaServer
from steerserve.errors import Refusal
from steerserve.files import gguf
from steerserve.messages.spelling import ReadBack
from steerserve.parts.activations.form import Tap
from steerserve.parts.response_format.form import ResponseFormat
from steerserve.rules.units import MIB
from tests import asking
from tests import gguf as maker
from tests.engines.llamas import (
    Write,
    answer,
    answers,
    ask,
    busy_slots,
    loaded,
    refused,
    until_idle,
)
from tests.gguf import CONTEXT, counted
from tests.worker.saes import attaching

GREEDY = m.Sampling(temperature=0.0, max_tokens=4)


# ------------------------------------------------------------- tokens


@pytest.mark.parametrize(("kind", "most"), [("counting", 3), ("encoder", 13)])
async def test_the_texts_of_all_tokens_take_few_questions(
    write: Write, kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The separator between the tokens is an unknown word for the encoder, whose text is that of a token."""
    asked: list[list[int]] = []
    text = LlamaServer.text

    async def counted_text(server: LlamaServer, tokens: list[int]) -> str:
        asked.append(tokens)
        return await text(server, tokens)

    monkeypatch.setattr(LlamaServer, "text", counted_text)
    async with loaded(write(kind=kind)) as (engine, facts):
        ids = list(range(facts.vocabulary))
        asked.clear()
        found = await engine.ask(ReadBack(ids=ids * 2))
        assert len(asked) <= most
        assert found.ids == ids * 2
        alone = [(await engine.ask(ReadBack(ids=[token]))).text for token in ids]
        assert found.pieces == alone * 2


# ------------------------------------------------------------- what a model is


async def test_the_facts_of_a_model_are_those_of_its_header(write: Write) -> None:
    async with loaded(write("Q8_0")) as (engine, facts):
        assert facts.architecture == "llama"
        assert facts.dtype == "Q8_0"
        assert facts.quantization == "Q8"
        assert facts.parameters == gguf.read_header([write("Q8_0")]).parameters
        assert (facts.layers, facts.hidden_size, facts.vocabulary) == (1, 512, 434)
        assert facts.context_length == CONTEXT
        assert facts.kv_tokens == 4 * CONTEXT
        assert facts.kv_bytes_per_token == 2 * 2 * 128 * 2
        assert facts.chat_template
        assert facts.supports_embeddings
        assert not facts.is_embedding_only
        assert facts.memory_mb > 10
        assert engine.pid is not None
        process = psutil.Process(engine.pid)
        # llama.cpp tells no parts
        (part,) = (await engine.ask(m.Measure())).parts
        assert (part.device, part.weights, part.cache, part.saes) == ("cpu", None, None, 0)
        assert part.process is not None
        assert part.process > 10 * MIB
    assert not process.is_running()
    assert engine.ended.done()


async def test_progress_is_reported_up_to_the_check(write: Write) -> None:
    engine = GgufEngine(Options(threads=1, min_context=64, kv_cache_mb=64))
    stages: list[m.Progress] = []
    await engine.load(stages.append, path=str(write()), header=gguf.read_header([write()]))
    await engine.stop()
    assert [p.stage for p in stages] == ["starting", "loading_weights", "checking"]
    assert [p.percent for p in stages] == sorted(p.percent for p in stages)


# ------------------------------------------------------------- text


async def test_a_completion_is_streamed_and_counted(engine: GgufEngine) -> None:
    async with aclosing(ask(engine, "one two", max_tokens=3)) as events:
        found = [event async for event in events]
    assert isinstance(found[0], m.Started)
    assert found[0].prompt_tokens == [3]
    assert len({event.id for event in found}) == 1
    pieces = [event for event in found[1:] if isinstance(event, m.Piece)]
    assert [p.text for p in pieces if p.text] == [" three", " four", " five"]
    assert (pieces[-1].finish, pieces[-1].tokens) == ("length", 3)


async def test_the_end_of_turn_stops_and_counts(engine: GgufEngine) -> None:
    text = counted(2, "nineteen")
    assert await answer(ask(engine, "eighteen", max_tokens=50)) == (text, "stop", 3)
    # also where it is the last token that fits
    assert await answer(ask(engine, "eighteen", max_tokens=3)) == (text, "stop", 3)
    assert await answer(ask(engine, "eighteen", max_tokens=2)) == (text, "length", 2)


async def test_two_quantizations_give_the_same_greedy_text(write: Write) -> None:
    for label in ("Q8_0", "Q4_0"):
        async with loaded(write(label)) as (engine, _):
            text, finish, tokens = await answer(ask(engine, "x", max_tokens=100))
            assert (text, finish, tokens) == (counted(20), "stop", 21)


async def test_a_split_model_is_one_model(write: Write) -> None:
    async with loaded(write(split=4)) as (engine, facts):
        assert facts.parameters == gguf.read_header([write()]).parameters
        assert (await answer(ask(engine, "two")))[0] == counted(4, "three")


async def test_a_quantized_cache_gives_the_same_text(write: Write) -> None:
    async with loaded(write(), cache_type="q8_0") as (engine, facts):
        assert facts.kv_bytes_per_token == 2 * 2 * 128 * 34 // 32
        assert (await answer(ask(engine, "two")))[0] == counted(4, "three")


STOPS = [
    (["four"], " two three ", "stop", 3),
    ([" four", "three f"], " two ", "stop", 3),
    (["hree"], " two t", "stop", 2),
    (["five six!"], counted(4, "two"), "length", 4),
    (["two"], " ", "stop", 1),
    (["", "nothing"], counted(4, "two"), "length", 4),
]


@pytest.mark.parametrize(("stops", "text", "finish", "tokens"), STOPS)
async def test_a_stop_string_cuts_where_it_begins(
    engine: GgufEngine, stops: list[str], text: str, finish: str, tokens: int
) -> None:
    assert await answer(ask(engine, "one", stops=stops)) == (text, finish, tokens)
    await until_idle(engine)
    assert not await busy_slots(engine)


async def test_a_stop_string_may_have_special_tokens_that_do_not_end_the_text_by_themselves(
    write: Write,
) -> None:
    begin = "<|im_start|>"
    async with loaded(write(last=begin)) as (engine, _):
        for stops, text, tokens in (
            ([begin], " twenty", 2),
            ([f"twenty{begin}"], " ", 2),
            ([f"{begin} one two"], " twenty", 4),
            ([f"{begin}nothing"], " twenty one two three", 5),
            (["twenty one"], " ", 3),
        ):
            stopped = "length" if tokens == 5 else "stop"
            asked = ask(engine, "nineteen", stops=stops, max_tokens=5)
            assert await answer(asked) == (text, stopped, tokens), stops


async def test_several_prompts_are_choices_by_their_place(engine: GgufEngine) -> None:
    words = "one two three four five six seven eight nine ten".split()
    prompts, found = await answers(ask(engine, *words, max_tokens=3))
    assert prompts == [2] * 10
    for place, word in enumerate(words):
        assert found[place] == (counted(4, word).removeprefix(f" {word}"), "length", 3)


async def test_eight_requests_at_once_are_each_exact(write: Write) -> None:
    async with loaded(write(), slots=8) as (engine, _):
        firsts = maker.WORDS[:8]
        found = await asyncio.gather(*(answer(ask(engine, w, max_tokens=40)) for w in firsts))
        for word, (text, finish, tokens) in zip(firsts, found, strict=True):
            rest = counted(20, word).removeprefix(f" {word}")
            assert (text, finish, tokens) == (rest, "stop", len(rest.split()) + 1)


async def test_a_default_length_is_lowered_to_what_the_context_leaves(engine: GgufEngine) -> None:
    # "x" is followed by twenty words and the end of turn
    assert await answer(ask(engine, "x", max_tokens=None)) == (counted(20), "stop", 21)
    prompt = "x " * 100  # two tokens each, and the BOS
    prompts, found = await answers(ask(engine, prompt, max_tokens=None))
    left = CONTEXT - prompts[0]
    short = await answers(ask(engine, prompt, max_tokens=left))
    assert found == short[1]


# ------------------------------------------------------------- conversations


async def test_a_conversation_goes_through_the_models_own_template(engine: GgufEngine) -> None:
    talk = [{"role": "user", "content": "one two"}]
    prompts, found = await answers(ask(engine, talk))
    rendered = "<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n"
    assert prompts == (await answers(ask(engine, rendered)))[0]
    assert found[0][0] == counted(4)


async def test_a_trailing_assistant_message_is_continued(engine: GgufEngine) -> None:
    talk = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "five six"}]
    assert (await answer(ask(engine, talk)))[0] == counted(4, "seven")


@pytest.mark.parametrize(
    "template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"]
)
async def test_a_prompt_has_one_bos(write: Write, template: str) -> None:
    async with loaded(write(template=template)) as (engine, _):
        prompts, _ = await answers(ask(engine, [{"role": "user", "content": "one two"}]))
        assert prompts == [3]


async def test_a_model_without_a_template_says_so(write: Write) -> None:
    async with loaded(write(template=None)) as (engine, facts):
        assert not facts.chat_template
        talk = [{"role": "user", "content": "one"}]
        assert (await refused(ask(engine, talk))).code == "NO_CHAT_TEMPLATE"
        assert (await answer(ask(engine, "one")))[0] == counted(4, "two")


@pytest.mark.parametrize(
    ("template", "refused_as"),
    [
        (
            "{{ lipsum.__globals__['os'].popen('touch FILE').read() }}",
            ("INVALID_PARAMETER", "messages"),
        ),
        ("{% for %}", ("NO_CHAT_TEMPLATE", None)),
        ("{{ raise_exception('roles must alternate') }}", ("INVALID_PARAMETER", "messages")),
    ],
)
async def test_a_hostile_or_broken_template_harms_nothing_but_conversations(
    write: Write, template: str, refused_as: tuple[str, str | None], tmp_path: Path
) -> None:
    made = tmp_path / "made"
    async with loaded(write(template=template.replace("FILE", str(made)))) as (engine, _):
        refusal = await refused(ask(engine, [{"role": "user", "content": "one"}]))
        assert (refusal.code, refusal.param) == refused_as
        assert (await answer(ask(engine, "one")))[0] == counted(4, "two")
    assert not made.exists()


# ------------------------------------------------------------- refusals


@pytest.mark.shows("model-naming.2")
async def test_a_prompt_and_its_completion_must_fit_the_context(engine: GgufEngine) -> None:
    fits = CONTEXT - 2
    assert (await answers(ask(engine, "one", max_tokens=fits)))[0] == [2]
    refusal = await refused(ask(engine, "one", max_tokens=fits + 1))
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.message == (
        "This model's maximum context length is 256 tokens. However, you requested 257 tokens "
        "(2 in the prompt, 255 for the completion)."
    )
    assert refusal.details == {
        "max_context_tokens": 256,
        "requested_tokens": 257,
        "prompt_tokens": 2,
        "max_tokens": 255,
    }


async def test_the_offending_prompt_is_named(engine: GgufEngine) -> None:
    long = "one " * CONTEXT
    several = await refused(ask(engine, "one", long))
    assert (several.code, several.param) == ("CONTEXT_LENGTH_EXCEEDED", "prompt[1]")
    talk = [{"role": "user", "content": "one"}]
    chats = await refused(ask(engine, talk, [{"role": "user", "content": long}]))
    assert chats.param == "extra_messages[0]"
    texts = [m.Text("one"), m.Text(long)]
    assert (await refused(engine.run(asking.read(0, texts, m.Embed())))).param == "input[1]"


async def test_a_text_that_cannot_fit_is_refused_without_being_tokenized(
    engine: GgufEngine,
) -> None:
    refusal = await refused(ask(engine, "x" * 4_000_000))
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.details["prompt_tokens"] > CONTEXT


async def test_a_prompt_without_tokens_is_refused_and_an_empty_one_is_the_bos(
    engine: GgufEngine,
) -> None:
    assert (await answers(ask(engine, "")))[0] == [1]
    bare = engine.run(asking.generate(0, [m.Text("", special=False)], GREEDY, m.Follow()))
    refusal = await refused(bare)
    assert (refusal.code, refusal.param) == ("INVALID_PARAMETER", "prompt")


async def test_what_the_engine_cannot_honour_is_refused_and_not_ignored(engine: GgufEngine) -> None:
    text: list[m.Text | m.Chat] = [m.Text("one")]
    tap = Tap("k", None, 1, "all", False, 10)
    seeded = m.Sampling(seed=1)
    unhonoured = [
        engine.run(asking.generate(0, text, GREEDY, m.Follow(), n=2)),
        engine.run(asking.generate(0, text, seeded, m.Follow())),
        engine.run(asking.generate(0, text, GREEDY, m.Overlay(1, {"k": {1: 2.0}}))),
        engine.run(asking.generate(0, text, GREEDY, m.Follow(), constraint=ResponseFormat())),
        engine.run(asking.generate(0, text, GREEDY, m.Follow(), tap=tap)),
        engine.run(asking.score(0, text, top=5)),
    ]
    for stream in unhonoured:
        assert (await refused(stream)).code == "FIELD_NOT_HONOURED"
    with pytest.raises(Refusal) as caught:
        await engine.change(attaching(Path("/nowhere")))
    assert caught.value.code == "SAE_INCOMPATIBLE"
    await engine.change(m.setting(steering=m.Steering(1, True, {})))
    await engine.change(lambda state: state.detached("sae@0"))
    assert (await engine.ask(m.Measure())).devices == {}
    assert engine.passes.applied == {}


# ------------------------------------------------------------- sampling


async def test_temperature_top_p_and_penalty_choose_as_they_say(write: Write) -> None:
    async with loaded(write(kind="random", context=1024)) as (engine, _):
        greedy = (await answer(ask(engine, "one", max_tokens=40)))[0]
        for cold in ({"temperature": 1.0, "top_p": 0.0}, {"temperature": 1e-5}):
            assert (await answer(ask(engine, "one", max_tokens=40, **cold)))[0] == greedy
        warm = {
            (await answer(ask(engine, "one", max_tokens=40, temperature=2.0)))[0] for _ in range(3)
        }
        assert len(warm) == 3
        # a penalty that reaches the whole context leaves no loop, however long ago it began
        strong = {"max_tokens": 150, "repetition_penalty": 2.0}
        plain = (await answer(ask(engine, "one", max_tokens=150)))[0]
        varied = (await answer(ask(engine, "one", **strong)))[0]
        assert len(set(varied)) > len(set(plain))


async def test_the_defaults_of_a_file_do_not_choose(write: Write) -> None:
    """A random model at a high temperature leaves the few tokens that a file's own `top_k` would keep."""
    path = write(kind="random", general__sampling__top_k="1")
    async with loaded(path) as (engine, _):
        found = {
            (await answer(ask(engine, "one", max_tokens=30, temperature=2.0)))[0] for _ in range(3)
        }
        assert len(found) == 3
