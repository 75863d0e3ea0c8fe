"""Embeddings: the mean of the last hidden layer over a text's own tokens, by language models and by encoders."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModel, PreTrainedTokenizerFast

from steerserve import messages as m
from steerserve.engines.checkpoint.client import CheckpointEngine
from steerserve.messages import Embed, Embedded, Refused, Text, Tokens
from steerserve.rules.steering.live import Live
from steerserve.worker.batch import group as group_module
from steerserve.worker.batch import passes as passes_module
from steerserve.worker.batch.admission import pooling_rows, shortest_first
from steerserve.worker.batch.passes import Passes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.encoder import Encoder
from tests import asking
from tests.refusals import refusal_of, refused
from tests.worker.models import CONTEXT
from tests.worker.running import FIELDS, Bench, generated, random_sae, site_of, vector_of, words
from tests.worker.saes import arrays, attaching, config_v6, write

Loaded = Callable[[str], Checkpoint]
Folder = Callable[[str], Path]
KINDS = "llama gpt2 gemma2 gemma3 qwen3 phi gpt_neox mistral falcon opt cohere granite".split()
IN_PARTS = "llama gpt2 gemma3 mistral opt falcon".split()
# longest first, so that the order of the texts is not that of the rows
TEXTS = [words(90), words(4, 7), words(33, 50)]
KEY = "sae@0"
SAE = random_sae(32)
LIVE = Live(1, True, {KEY: {3: 2.0, 7: -1.5}})


def mean_of(model: Checkpoint, ids: list[int]) -> Tensor:
    """The mean over a text's tokens of what goes into the output embedding, [hidden], by one plain pass."""
    out = model.model.base_model(input_ids=torch.tensor([ids]), use_cache=False)
    return out.last_hidden_state[0].float().mean(0)


def close(found: Tensor, truth: Tensor) -> bool:
    return bool((found - truth).norm() <= 1e-5 * truth.norm())


def check_all(bench: Bench, request: int, texts: list[str]) -> None:
    assert not bench.refused
    assert sorted(c for r, c in bench.vectors if r == request) == list(range(len(texts)))
    for choice, text in enumerate(texts):
        truth = mean_of(bench.model, bench.model.encode(text, special=True))
        assert close(bench.vectors[request, choice], truth), choice


# ---------------------------------------------------------------- language models


@pytest.mark.parametrize("variant", KINDS)
def test_texts_of_different_lengths_are_pooled_as_by_a_plain_pass(
    loaded: Loaded, variant: str
) -> None:
    bench = Bench(loaded(variant))
    bench.embed(1, TEXTS)
    bench.run()
    check_all(bench, 1, TEXTS)


@pytest.mark.parametrize("variant", IN_PARTS)
def test_a_text_pooled_in_parts_equals_the_whole(
    loaded: Loaded, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", 16)
    bench = Bench(loaded(variant))
    bench.embed(1, TEXTS)
    bench.step(4)
    assert any(0 < row.filled < len(row.prompt) for row in bench.batch._shared.joining)
    bench.run()
    check_all(bench, 1, TEXTS)


@pytest.mark.parametrize("variant", IN_PARTS)
@pytest.mark.parametrize("part", [16, 1024])
def test_vectors_and_texts_and_scores_beside_each_other_are_those_of_each_alone(
    loaded: Loaded, variant: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    model = loaded(variant)
    alone = Bench(model)
    alone.score(3, words(25, 3))
    alone.run()
    bench = Bench(model)
    answers = [bench.ask(1, words(20), max_tokens=24)]
    bench.step(3)
    bench.embed(2, TEXTS)
    bench.score(3, words(25, 3))
    answers.append(bench.ask(4, words(25), max_tokens=24))
    bench.embed(5, [words(25, 9)])
    bench.run()
    check_all(bench, 2, TEXTS)
    check_all(bench, 5, [words(25, 9)])
    assert [a.tokens for a in answers] == [generated(model, words(n), 24) for n in (20, 25)]
    found, truth = ([s.logprob for s in b.scores[3, 0].top] for b in (bench, alone))
    assert found == pytest.approx(truth, abs=1e-4)


def test_texts_without_room_wait_and_each_is_pooled(llama: Checkpoint) -> None:
    texts = [words(100 - 7 * i, i) for i in range(12)]
    bench = Bench(llama, kv_tokens=192)
    bench.embed(1, texts)
    bench.step()
    assert bench.batch._waiting
    bench.run()
    check_all(bench, 1, texts)
    assert bench.held_bytes == 0


def test_a_text_may_fill_the_context(llama: Checkpoint) -> None:
    ids = [5 + i % 200 for i in range(CONTEXT + 1)]
    bench = Bench(llama)
    bench.embed(1, "", ids=ids[:-1])
    bench.run()
    assert close(bench.vectors[1, 0], mean_of(llama, ids[:-1]))
    assert refusal_of(bench.embed, 2, "", ids=ids).code == "CONTEXT_LENGTH_EXCEEDED"


@pytest.mark.parametrize("part", [16, 1024])
def test_vectors_beside_steered_texts_are_bitwise_those_without_steering(
    llama: Checkpoint, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_module, "PREFILL_TOKENS", part)
    found = []
    for live in (LIVE, Live()):
        bench = Bench(llama)
        with bench.attached(KEY, SAE):
            bench.steering.set_live(live)
            bench.ask(1, words(20), max_tokens=24)
            bench.step(3)
            bench.ask(2, words(15), max_tokens=8)
            bench.embed(3, TEXTS)
            bench.run()
        check_all(bench, 3, TEXTS)
        found.append(bench)
    steered, plain = found
    assert all(torch.equal(vector, plain.vectors[at]) for at, vector in steered.vectors.items())
    assert steered.answers[1, 0].tokens != plain.answers[1, 0].tokens


@pytest.mark.parametrize(
    ("texts", "code", "param"),
    [
        ("", "INVALID_PARAMETER", "input"),
        (["fine", ""], "INVALID_PARAMETER", "input[1]"),
        (["fine", "fine", words(400)], "CONTEXT_LENGTH_EXCEEDED", "input[2]"),
    ],
)
def test_a_text_that_cannot_be_embedded_is_refused_by_the_name_of_its_field(
    llama: Checkpoint, texts: str | list[str], code: str, param: str
) -> None:
    bench = Bench(llama)
    refusal = refusal_of(bench.embed, 1, texts)
    assert (refusal.code, refusal.param) == (code, param)
    assert bench.batch.is_idle


def test_hidden_states_that_are_no_numbers_end_their_request_and_nobody_elses(
    llama: Checkpoint,
) -> None:
    bench = Bench(llama)
    bench.embed(1, TEXTS)
    bench.embed(2, TEXTS)

    def spoil(_: Any, __: Any, output: Tensor) -> Tensor:
        spoiled = output.clone()
        spoiled[1] = math.nan
        return spoiled

    handle = site_of(llama, llama.layers - 1).module.register_forward_hook(spoil)
    try:
        bench.step()
    finally:
        handle.remove()
    bench.run()
    assert {i: r.code for i, r in bench.refused.items()} == {1: "NON_FINITE_LOGITS"}
    bench.refused.clear()
    check_all(bench, 2, TEXTS)


# ---------------------------------------------------------------- encoders

POSITIONS = 66
PLAIN: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 1,
    "initializer_range": 0.25,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
SMALL = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
# kind -> fields of its configuration, and the tokens of the longest text
ENCODERS: dict[str, tuple[dict[str, Any], int]] = {
    "bert": ({}, POSITIONS),
    "roberta": ({}, POSITIONS - 2),
    "xlm-roberta": ({}, POSITIONS - 2),
    "distilbert": (SMALL, POSITIONS),
    "mpnet": ({}, POSITIONS - 2),
    "data2vec-text": ({}, POSITIONS - 2),
    "mistral": ({"num_key_value_heads": 2, "head_dim": 8}, POSITIONS),
}
Encoding = Callable[[str], Encoder]


def encoder_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with the special tokens and their places that encoders know: `<s>` text `</s>`."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    core.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator([words(300)], trainer)
    core.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", pad_token="<pad>", eos_token="</s>"
    )


def save_encoder(kind: str, folder: Path) -> Path:
    """A random embedding-only checkpoint, the same at every call."""
    config = CONFIG_MAPPING[kind](**{**PLAIN, **ENCODERS[kind][0]})
    with torch.random.fork_rng():
        torch.manual_seed(sum(kind.encode()))
        model = AutoModel.from_config(config, dtype=torch.float32)
    # biases and norms start at 0 and 1, where a forgotten one would not show
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += torch.linspace(-0.2, 0.2, len(parameter))
    model.save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    root = tmp_path_factory.mktemp("encoders")

    def of(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else save_encoder(kind, path)

    return of


def opened(folder: Path) -> Encoder:
    return Encoder(folder, quantization="FP16", trust_remote_code=False, report=lambda *_: None)


@pytest.fixture(scope="module")
def encoding(encoder_folder: Folder) -> Encoding:
    held: dict[str, Encoder] = {}

    def of(kind: str) -> Encoder:
        if kind not in held:
            held[kind] = opened(encoder_folder(kind))
        return held[kind]

    return of


def add(passes: Passes, model: Encoder, request: int, texts: list[str], client: str = "") -> None:
    prompts = [Tokens(model.encode(text, special=True)) for text in texts]
    command = asking.read(request, prompts, Embed())
    rows = shortest_first(pooling_rows(command, model, model.model_max_context))
    passes.add(rows, client=client)


def run(passes: Passes) -> list[Any]:
    outcomes = []
    while not passes.is_idle:
        outcomes += passes.step()
    return outcomes


def vectors_of(outcomes: list[Any]) -> dict[tuple[int, int], Tensor]:
    assert all(isinstance(outcome, Embedded) for outcome in outcomes), outcomes
    found = {(outcome.id, outcome.choice): vector_of(outcome) for outcome in outcomes}
    assert len(found) == len(outcomes), "a second vector"
    return found


def embed_with(model: Encoder, texts: list[str]) -> list[Tensor]:
    passes = Passes(model)
    add(passes, model, 1, texts)
    found = vectors_of(run(passes))
    return [found[1, choice] for choice in range(len(texts))]


def encoder_mean(model: Encoder, text: str) -> Tensor:
    """By one plain pass over the text alone, as transformers loads the folder."""
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    out = model.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return out.last_hidden_state[0].float().mean(0)


def text_of_length(model: Encoder, tokens: int) -> str:
    """A text of so many tokens, special ones counted: characters that no merge joins."""
    text = "x" * (tokens - len(model.encode("", special=True)))
    assert len(model.encode(text, special=True)) == tokens
    return text


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_pools_texts_of_different_lengths_as_by_a_plain_pass(
    encoding: Encoding, kind: str
) -> None:
    model = encoding(kind)
    texts = [words(50), words(4, 7), words(20, 30), "", words(50, 3)]
    found = embed_with(model, texts)
    for text, vector in zip(texts, found, strict=True):
        assert close(vector, encoder_mean(model, text)), text
    assert not close(found[0], found[4])


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_takes_texts_up_to_its_last_position(encoding: Encoding, kind: str) -> None:
    model, longest = encoding(kind), ENCODERS[kind][1]
    assert model.model_max_context == longest
    text = text_of_length(model, longest)
    found = embed_with(model, ["a", text])
    assert close(found[1], encoder_mean(model, text))
    refusal = refusal_of(embed_with, model, [text + "x"])
    assert refusal.code == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.details["max_context_tokens"] == longest


def test_the_limit_that_the_tokenizer_names_counts_where_it_is_lower(
    encoder_folder: Folder, tmp_path: Path
) -> None:
    folder = save_encoder("bert", tmp_path / "bert")
    file = folder / "tokenizer_config.json"
    for named, expected in ((20, 20), (POSITIONS + 900, POSITIONS)):
        file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": named}))
        assert opened(folder).model_max_context == expected


def test_an_encoder_pools_in_as_many_passes_as_its_bound_needs(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoding("bert")
    monkeypatch.setattr(passes_module, "PASS_TOKENS", 40)
    widths: list[tuple[int, ...]] = []
    pooled = model.pooled

    def counted(rows: list[list[int]]) -> Tensor:
        widths.append((len(rows), max(map(len, rows))))
        return pooled(rows)

    monkeypatch.setattr(model, "pooled", counted)
    texts = [text_of_length(model, size) for size in (60, 4, 30, 9, 12, 3, 21)]
    for text, vector in zip(texts, embed_with(model, texts), strict=True):
        assert close(vector, encoder_mean(model, text))
    assert len(widths) > 1
    assert all(count == 1 or count * width <= 40 for count, width in widths)


def test_requests_to_an_encoder_share_passes_and_keep_their_vectors(encoding: Encoding) -> None:
    model = encoding("roberta")
    passes = Passes(model)
    asked = {1: [words(9), words(40)], 2: [words(30, 2)], 3: [words(5), words(6), words(7)]}
    for request, texts in asked.items():
        add(passes, model, request, texts)
    passes.cancel(2)
    found = vectors_of(run(passes))
    assert {request for request, _ in found} == {1, 3}
    for (request, choice), vector in found.items():
        assert close(vector, encoder_mean(model, asked[request][choice]))


def test_clients_take_turns_at_the_places_in_a_pass_of_an_encoder(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoding("bert")
    passes = Passes(model)
    add(passes, model, 1, ["a"] * 8, client="greedy")
    add(passes, model, 2, ["a"] * 2, client="polite")
    command = asking.read(3, [Tokens(model.encode("a", special=True))], Embed())
    (row,) = pooling_rows(command, model, CONTEXT)
    monkeypatch.setattr(passes_module, "PASS_TOKENS", 4 * len(row.prompt))
    assert [outcome.id for outcome in passes.step()] == [1, 2, 1, 2]
    assert [outcome.id for outcome in run(passes)] == [1] * 6


@pytest.fixture
def spoiled(encoder_folder: Folder) -> Encoder:
    """An encoder that gives NaN for texts with a `Q`."""
    model = opened(encoder_folder("bert"))
    (token,) = model.encode("Q", special=False)
    with torch.no_grad():
        model.model.get_input_embeddings().weight[token] = math.nan
    return model


def test_an_encoders_states_that_are_no_numbers_end_their_request_and_nobody_elses(
    spoiled: Encoder,
) -> None:
    passes = Passes(spoiled)
    add(passes, spoiled, 1, ["Q", "a", "b c d"])
    add(passes, spoiled, 2, ["fine", "fine too"])
    outcomes = run(passes)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    assert {(r.id, r.code) for r in refused} == {(1, "NON_FINITE_LOGITS")}
    found = vectors_of([o for o in outcomes if isinstance(o, Embedded) and o.id == 2])
    for choice, text in enumerate(("fine", "fine too")):
        assert close(found[2, choice], encoder_mean(spoiled, text))


def test_a_refused_request_to_an_encoder_has_no_text_left(
    spoiled: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes_module, "PASS_TOKENS", 4)
    passes = Passes(spoiled)
    add(passes, spoiled, 1, ["Q", words(20), words(30)])
    outcomes = run(passes)
    assert [type(outcome) for outcome in outcomes] == [Refused]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("broken"), "INTERNAL_ERROR"),
        (torch.OutOfMemoryError("no memory"), "INSUFFICIENT_MEMORY"),
    ],
    ids=["broken", "memory"],
)
def test_a_broken_pass_of_an_encoder_refuses_its_requests_and_the_next_is_served(
    encoding: Encoding, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    model = encoding("bert")
    passes = Passes(model)
    add(passes, model, 1, ["a", "b c"])

    def fail(_: Any) -> Tensor:
        raise error

    with monkeypatch.context() as patched, capture_logs():
        patched.setattr(model, "pooled", fail)
        outcomes = run(passes)
    assert [(o.id, o.code) for o in outcomes] == [(1, code)]
    assert close(embed_with(model, ["a"])[0], encoder_mean(model, "a"))


# ---------------------------------------------------------------- through a real engine process


async def vectors(engine: CheckpointEngine, texts: list[str]) -> tuple[m.Started, list[Tensor]]:
    started, *rest = [
        event
        async for event in engine.run(asking.read(0, [Text(text) for text in texts], m.Embed()))
    ]
    assert isinstance(started, m.Started)
    found = {event.choice: vector_of(event) for event in rest if isinstance(event, Embedded)}
    assert len(found) == len(rest) == len(texts)
    return started, [found[choice] for choice in range(len(texts))]


async def test_an_engine_embeds_with_a_language_model(
    engine: CheckpointEngine, folder: Folder, llama: Checkpoint
) -> None:
    facts = await engine.load(lambda _: None, path=str(folder("llama")), **FIELDS)
    assert not facts.is_embedding_only
    ids = [llama.encode(text, special=True) for text in TEXTS]
    started, found = await vectors(engine, TEXTS)
    assert started.prompt_tokens == [len(prompt) for prompt in ids]
    for vector, prompt in zip(found, ids, strict=True):
        assert close(vector, mean_of(llama, prompt))


async def test_an_engine_with_an_encoder_embeds_and_refuses_all_else_by_code(
    engine: CheckpointEngine, encoder_folder: Folder, encoding: Encoding, tmp_path: Path
) -> None:
    model = encoding("roberta")
    stages: list[m.Progress] = []
    facts = await engine.load(stages.append, path=str(encoder_folder("roberta")), **FIELDS)
    assert facts.is_embedding_only
    assert (facts.architecture, facts.hidden_size, facts.layers) == ("RobertaModel", 32, 2)
    assert facts.context_length == model.model_max_context
    assert not facts.chat_template
    assert [stage.percent for stage in stages] == sorted(stage.percent for stage in stages)

    texts = [words(50), words(4, 7), words(20, 30)]
    sae = write(tmp_path, config_v6("standard", d_in=32), arrays("standard", d_in=32))

    async def drained(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    refused_calls: list[Callable[[], Any]] = [
        lambda: drained(engine.run(asking.generate(0, [Text("a")], m.Sampling(), m.Follow()))),
        lambda: drained(engine.run(asking.score(0, [Text("a")], top=5))),
        lambda: engine.change(attaching(sae)),
        lambda: drained(engine.run(asking.read(0, [Text("fine"), Text(words(400))], m.Embed()))),
    ]
    codes = []
    for call in refused_calls:
        codes.append((await refused(call())).code)
        started, found = await vectors(engine, texts)
        assert started.prompt_tokens == [len(model.encode(t, special=True)) for t in texts]
        for vector, text in zip(found, texts, strict=True):
            assert close(vector, encoder_mean(model, text))
    assert codes == [*["MODEL_NOT_LOADED"] * 3, "CONTEXT_LENGTH_EXCEEDED"]
    await engine.change(m.setting(steering=m.Steering(1, True, {KEY: {0: 1.0}})))
    assert engine.passes.applied == {}


async def test_an_encoder_at_a_quantization_that_cannot_be_applied_is_refused(
    engine: CheckpointEngine, encoder_folder: Folder
) -> None:
    fields = {**FIELDS, "quantization": "Q2"}
    load = engine.load(lambda _: None, path=str(encoder_folder("bert")), **fields)
    assert (await refused(load)).code == "UNSUPPORTED_QUANTIZATION"
