"""A model with its running batch, stepped by hand, and the slow truths that it is compared with."""

from __future__ import annotations

import json
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from steerserve.errors import Refusal
from steerserve.messages import (
    ActivationsRead,
    Attribute,
    Attributed,
    Echo,
    Embed,
    Embedded,
    Follow,
    Generate,
    Lens,
    LensRead,
    PartsRead,
    Patch,
    Patched,
    Piece,
    Places,
    Plan,
    ReadActivations,
    ReadParts,
    ReadStates,
    Recorded,
    Refused,
    Reported,
    Request,
    Sampling,
    Score,
    Scored,
    SensedEdges,
    SensedSpans,
    StatesRead,
    Suppressed,
    Tokens,
)
from steerserve.nouns.cluster_sensing.rules import History
from steerserve.parts.activations.form import Reading, Tap
from steerserve.parts.activations_raw.form import RawReads
from steerserve.parts.divergence.form import Diverged, Divergence
from steerserve.parts.logprobs.form import Logprobs
from steerserve.parts.pool.form import Pool, Pooled
from steerserve.rules.inference import stepping
from steerserve.rules.inference.stepping import CudaGraphs
from steerserve.rules.saes.sites import OPERAND_SITES
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.vector import Direction
from steerserve.worker.batch.admission import (
    activation_rows,
    attribution_rows,
    lens_rows,
    part_rows,
    patch_rows,
    pooling_rows,
    rows_of,
    scoring_rows,
    shortest_first,
    states_rows,
)
from steerserve.worker.batch.batch import Batch
from steerserve.worker.batch.graphs import DecodeGraphs
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.live.monitor import FeatureMonitor
from steerserve.worker.live.readers import LiveReaders
from steerserve.worker.live.sensing import Sensing
from steerserve.worker.live.target import target_of
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.kv import KvCache
from steerserve.worker.model.plain import PlainCache, bytes_by_device
from steerserve.worker.model.recording import CardRecorder, PassRecorder
from steerserve.worker.model.unembedding import Unembedding
from steerserve.worker.rows.goals import Ending
from steerserve.worker.rows.lens_files import open_lens
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.sae import sites
from steerserve.worker.sae.canonical import Sae
from tests import asking
from tests.worker import models
from tests.worker.tape import Tape

Result = TypeVar("Result")

FIELDS: dict[str, Any] = {
    "quantization": "FP16",
    "trust_remote_code": False,
    "threads": 1,
    "kv_cache_mb": 8,
    "min_context": 16,
}
"""How the tests load a tiny checkpoint into an engine, beside its path."""

STORY = (
    "One morning Anna walked down to the harbour with her brother, and the boats were coming home; the fishermen "
    "carried baskets up the stone steps, and she asked: did you sleep well?"
)


def open_checkpoint(
    path: Path, quantization: str = "FP16", devices: tuple[str, ...] = ()
) -> Checkpoint:
    with torch.inference_mode():
        return Checkpoint(
            path,
            quantization=quantization,
            trust_remote_code=False,
            report=lambda *_: None,
            devices=devices,
        )


def altered(source: Path, target: Path, **config: Any) -> Path:
    """A copy of a checkpoint folder with other values in its configuration."""
    shutil.copytree(source, target)
    file = target / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return target


def with_bos(folder: Path, chat_template: str | None = None) -> Path:
    """The folder with a tokenizer that puts `<bos>` before every text, and perhaps a chat template."""
    return with_special(folder, models.tokenizer(), chat_template)


def with_special(
    folder: Path, tokenizer: PreTrainedTokenizerFast, chat_template: str | None = None
) -> Path:
    """The folder with this tokenizer, which then puts `<bos>`, its token 0, before every text."""
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder


def tokens(model: Checkpoint, prompt: str | Tokens, ids: list[int] | None = None) -> Tokens:
    """A prompt as the engine gets it, with the tokenizer's special tokens; `ids` are its tokens in place of the
    tokenizer's."""
    if ids is not None:
        return Tokens(list(ids))
    return prompt if isinstance(prompt, Tokens) else Tokens(model.encode(prompt, special=True))


@dataclass
class Answer:
    """What came of one choice."""

    row: BatchRow
    text: str = ""
    finish: str | None = None
    pieces: list[Piece] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return list(self.row.out)


def _recorder(decoding: str, model: Checkpoint) -> PassRecorder | None:
    if decoding == "card":
        return CardRecorder(model.device)
    return Tape() if decoding == "taped" else None


class Bench:
    """One model, its steering and its running batch, stepped by hand.

    `decoding` says how decode passes are run: `plain`, or on static buffers: `called`, `taped` (recorded by a `Tape`)
    or `card` (recorded by a card). How much of a prompt a step reads depends on the speed of the machine; with a very
    long `step_seconds` a step reads as much as one pass takes.
    """

    decoding = "plain"

    def __init__(
        self,
        model: Checkpoint,
        kv_tokens: int = 4096,
        *,
        prefix_tokens: int = 0,
        shares_seeded: bool | None = None,
        step_seconds: float = stepping.STEP_SECONDS,
    ) -> None:
        self.model = model
        self.kv_tokens = kv_tokens
        self.context = min(model.model_max_context, kv_tokens - model.row_tokens)
        self.monitor = FeatureMonitor(model.special_tokens)
        self.sensing = Sensing(model.decode, lambda: self.monitor.whole)
        self.readers = LiveReaders([self.monitor, self.sensing])
        self.steering = HookedSaes(
            model.dtype,
            on_detach=self.readers.detached,
            find_site=partial(sites.find, model.model, model.layers),
        )
        self.graphs: DecodeGraphs | None = None
        self.changes: list[CudaGraphs] = []
        if self.decoding != "plain" and model.attention is not None:
            self.graphs = DecodeGraphs(model, self.steering, _recorder(self.decoding, model))
            self.graphs.on_change = self.changes.append
        self.batch = Batch(
            model,
            self.steering,
            self.readers,
            kv_tokens,
            prefix_tokens,
            shares_seeded=model.varies is None if shares_seeded is None else shares_seeded,
            step_seconds=step_seconds,
            graphs=self.graphs,
        )
        self.answers: dict[tuple[int, int], Answer] = {}
        self.scores: dict[tuple[int, int], Scored] = {}
        self.vectors: dict[tuple[int, int], Tensor] = {}
        self.readings: dict[int, list[Reading]] = {}
        self.pooled: dict[tuple[int, int], Pooled] = {}
        self.lenses: dict[int, LensRead] = {}
        self.attributed: dict[int, Attributed] = {}
        self.patched: dict[int, Patched] = {}
        self.states: dict[tuple[int, int], StatesRead] = {}
        self.sparse: dict[tuple[int, int], ActivationsRead] = {}
        self.pieces: dict[tuple[int, int], list[PartsRead]] = defaultdict(list)
        self.streamed: set[int] = set()
        self.records: list[Recorded] = []
        self.history = History()
        self.spans: list[SensedSpans] = []
        self.edges: list[SensedEdges] = []
        self.diverged: dict[tuple[int, int], Diverged] = {}
        self.refused: dict[int, Refused] = {}

    def ask(
        self,
        request: int,
        prompts: str | list[str],
        *,
        n: int = 1,
        plan: Plan | None = None,
        tap: Tap | None = None,
        ids: list[int] | None = None,
        label: str | None = None,
        client: str = "",
        counted: tuple[Edit, ...] | None = None,
        logprobs: Logprobs | None = None,
        divergence: Divergence | None = None,
        readings: tuple[Direction, ...] = (),
        raw: RawReads | None = None,
        is_stream: bool = False,
        **sampling: Any,
    ) -> Answer:
        """Add a request, greedy unless told otherwise; the answer of its first choice.

        `ids` are the tokens of its prompt in place of the tokenizer's.
        """
        wanted = Sampling(**{"temperature": 0.0, "max_tokens": 16, **sampling})
        texts = [prompts] if isinstance(prompts, str) else prompts
        prompted = [tokens(self.model, text, ids) for text in texts]
        skips = [self.history.skip(prompt.ids) for prompt in prompted]
        command = asking.generate(
            request,
            prompted,
            wanted,
            plan or Follow(),
            n=n,
            tap=tap,
            label=label,
            reported=Reported(self.history.number, skips),
            counted=counted,
            logprobs=logprobs,
            divergence=divergence,
            readings=readings,
            raw=raw,
            is_stream=is_stream,
        )
        if tap and tap.is_streamed:
            self.streamed.add(request)
        assert isinstance(command.goal, Generate)
        where = self.model, self.context, self.kv_tokens, self.steering
        rows = rows_of(command, command.goal, *where)
        for row in rows:
            self.steering.prepare(row.steering)
        self.readers.join(command, rows, self.steering)
        self.answers.update({(request, row.choice): Answer(row) for row in rows})
        self.batch.add(rows, is_seeded=wanted.seed is not None, client=client)
        return self.answers[request, 0]

    def score(
        self,
        request: int,
        prompts: str | list[str | Tokens],
        *,
        temperature: float = 1.0,
        top: int = 5,
        allowed: list[int] | None = None,
        special: bool = True,
        tap: Tap | None = None,
        ids: list[int] | None = None,
        echo: Echo | None = None,
        pool: Pool | None = None,
        raw: RawReads | None = None,
        plan: Plan | None = None,
    ) -> list[BatchRow]:
        """Add a request for the distribution of the token after each prompt; its rows, in the order of the prompts."""
        texts = [prompts] if isinstance(prompts, str) else prompts
        prompted = [
            Tokens(self.model.encode(text, special=special))
            if ids is None and isinstance(text, str)
            else tokens(self.model, text, ids)
            for text in texts
        ]
        command = asking.score(
            request,
            prompted,
            temperature,
            top,
            allowed,
            echo,
            plan=plan or Suppressed(),
            tap=tap,
            pool=pool,
            raw=raw,
        )
        assert isinstance(command.goal, Score)
        rows = scoring_rows(command, command.goal, self.model, self.context, self.steering)
        self.readers.join(command, rows, self.steering)
        self.batch.add(shortest_first(rows), is_seeded=False)
        return rows

    def embed(
        self, request: int, prompts: str | list[str], *, ids: list[int] | None = None
    ) -> list[BatchRow]:
        """Add a request for the vector of each text; its rows, in the order of the texts."""
        texts = [prompts] if isinstance(prompts, str) else prompts
        prompted = [tokens(self.model, text, ids) for text in texts]
        rows = pooling_rows(asking.read(request, prompted, Embed()), self.model, self.context)
        self.batch.add(shortest_first(rows), is_seeded=False)
        return rows

    def lens(
        self,
        request: int,
        prompt: str,
        layers: list[int] | None = None,
        top: int = 5,
        *,
        max_distributions: int = 4096,
        max_entries: int = 200_000,
        path: str | None = None,
    ) -> BatchRow:
        """Add a request for the lens of a text; its row."""
        prompted = [tokens(self.model, prompt)]
        goal = Lens(
            layers=layers,
            top=top,
            max_distributions=max_distributions,
            max_entries=max_entries,
            path=path,
        )
        file = None if path is None else open_lens(path)
        where = self.model, self.context, Unembedding(self.model)
        rows = lens_rows(asking.read(request, prompted, goal), goal, *where, file)
        self.batch.add(rows, is_seeded=False)
        return rows[0]

    def attribute(
        self,
        request: int,
        prompt: str,
        target: int,
        against: int | None = None,
        *,
        key: str,
        layer: int = 0,
        position: int = -1,
        top: int = 1000,
        **how: Any,
    ) -> BatchRow:
        """Add a request for the attribution of a logit after a text to the features of an SAE; its row."""
        prompted = [tokens(self.model, prompt)]
        named = {"position": position, "target": target, "against": against}
        goal = Attribute(**named, key=key, layer=layer, top=top, **how)
        where = self.model, self.context, Unembedding(self.model), self.steering
        rows = attribution_rows(asking.read(request, prompted, goal), goal, *where)
        self.batch.add(rows, is_seeded=False)
        return rows[0]

    def patch(self, request: int, base: Sequence[int], goal: Patch) -> None:
        """Add a request for patches of one text with values of another."""
        prompts = [Tokens(list(base))]
        where = self.model, self.context, lambda: Unembedding(self.model)
        rows = patch_rows(asking.read(request, prompts, goal), goal, *where)
        self.batch.add(rows, is_seeded=False)

    def read_states(
        self,
        request: int,
        prompts: Sequence[str | Tokens],
        layers: list[int],
        places: Places,
    ) -> list[BatchRow]:
        """Add a request for the stream after several layers; its rows, in the order of the texts."""
        prompted = [tokens(self.model, one) if isinstance(one, str) else one for one in prompts]
        goal = ReadStates(layers=layers, site=sites.RESID_POST, places=places)
        command = asking.read(request, prompted, goal)
        rows = states_rows(command, goal, self.model, self.context)
        self.batch.add(shortest_first(rows), is_seeded=False)
        return rows

    def read_activations(self, request: int, texts: Sequence[str], keys: list[str]) -> None:
        """Add a request for all activations of attached SAEs."""
        prompts = [tokens(self.model, text) for text in texts]
        goal = ReadActivations(keys=keys)
        command = asking.read(request, prompts, goal)
        rows = activation_rows(command, goal, self.model, self.context, self.steering)
        self.batch.add(rows, is_seeded=False)

    def read_raw(
        self,
        request: int,
        texts: Sequence[Tokens],
        raw: RawReads,
        plan: Plan | None = None,
    ) -> list[BatchRow]:
        """Add a request that reads raw activations of texts and writes nothing; its rows."""
        parts = asking.asked(raw=raw)
        made = plan or Suppressed()
        command = Request(id=request, goal=ReadParts(), prompts=list(texts), plan=made, parts=parts)
        rows = part_rows(command, self.model, self.context, self.steering)
        for row in rows:
            self.steering.prepare(row.steering)
        self.batch.add(rows, is_seeded=False)
        return rows

    @contextmanager
    def attached(
        self, key: str, sae: Sae, layer: int = 0, site: str = sites.RESID_POST
    ) -> Iterator[None]:
        """While open, the SAE is at its layer; models are shared, so no hook may outlive its test."""
        self.steering.attach(key, sae, site_of(self.model, layer, site))
        try:
            yield
        finally:
            if key in self.steering.applied:
                self.steering.detach(key)

    def watch(
        self, key: str | None, features: list[int] | None = None, top_k: int = 10, contexts: int = 0
    ) -> None:
        """Monitor the SAE at a key from the next pass on."""
        target = key and target_of(self.steering, key, features, top_k)
        self.monitor.watch(target or None, contexts)

    def step(self, times: int = 1) -> list[Ending]:
        """Steps of the batch, each checked against the bound on its memory."""
        outcomes: list[Ending] = []
        for _ in range(times):
            new = self.batch.step()
            assert self.held_tokens <= self.kv_tokens
            for outcome in new:
                self._note(outcome)
            outcomes += new
            self.hear()
            self.readers.work()
        return outcomes

    def hear(self) -> None:
        """Take the events of the readers."""
        for event in self.readers.events():
            match event:
                case Recorded():
                    self.records.append(event)
                case SensedSpans():
                    self.history.remember(event.history, event.reported)
                    self.spans.append(event)
                case SensedEdges():
                    self.edges.append(event)

    def run(self) -> Bench:
        while not self.batch.is_idle:
            self.step()
        return self

    def texts(self, request: int) -> list[str]:
        return [a.text for (number, _), a in sorted(self.answers.items()) if number == request]

    @property
    def held_tokens(self) -> int:
        """Tokens that the caches of all groups hold, counted in their tensors where those exist."""
        total = 0
        for group in self.batch._groups():
            if isinstance(group.cache, PlainCache):
                total += group.cache.tokens
                continue
            for shelf in group.cache._shelves.values():
                sizes = {t.shape[0] * t.shape[2] for t in shelf.keys.values()}
                total += max(sizes, default=shelf.room * shelf.capacity)
        return total

    @property
    def held_bytes(self) -> int:
        total = 0
        for group in self.batch._groups():
            if isinstance(group.cache, PlainCache):
                total += sum(sum(bytes_by_device(slot).values()) for slot in group.cache._slots)
                continue
            for shelf in group.cache._shelves.values():
                tensors = [*shelf.keys.values(), *shelf.values.values()]
                total += sum(t.numel() * t.element_size() for t in tensors)
        return total

    def live_rows(self, request: int) -> list[BatchRow]:
        """The rows a request has anywhere in the batch."""
        waiting = self.batch._waiting.rows
        held = [row for group in self.batch._groups() for row in group.all_rows()]
        return [row for row in [*waiting, *held] if row.request == request]

    def _note(self, outcome: Ending) -> None:
        match outcome:
            case Refused():
                self.refused[outcome.id] = outcome
            case Scored():
                assert (outcome.id, outcome.choice) not in self.scores, "a second score"
                self._note_parts(outcome)
                self.scores[outcome.id, outcome.choice] = outcome
            case Embedded():
                assert (outcome.id, outcome.choice) not in self.vectors, "a second vector"
                self.vectors[outcome.id, outcome.choice] = vector_of(outcome)
            case LensRead():
                self.lenses[outcome.id] = outcome
            case Attributed():
                self.attributed[outcome.id] = outcome
            case Patched():
                self.patched[outcome.id] = outcome
            case StatesRead():
                self.states[outcome.id, outcome.choice] = outcome
            case ActivationsRead():
                self.sparse[outcome.id, outcome.choice] = outcome
            case PartsRead():
                pieces = self.pieces[outcome.id, outcome.choice]
                assert not (pieces and pieces[-1].is_last), "a piece after the last one"
                pieces.append(outcome)
            case Piece():
                answer = self.answers[outcome.id, outcome.choice]
                assert answer.finish is None, "a piece after the last one"
                self._note_parts(outcome)
                answer.pieces.append(outcome)
                answer.text += outcome.text
                answer.finish = outcome.finish

    def _note_parts(self, outcome: Piece | Scored) -> None:
        name = outcome.id, outcome.choice
        if (pooled := asking.told(outcome, "pool")) is not None:
            self.pooled[name] = pooled
        if (diverged := asking.told(outcome, "divergence")) is not None:
            self.diverged[name] = diverged
        if (read := asking.told(outcome, "activations")) is not None:
            is_streamed = outcome.id in self.streamed
            assert is_streamed or outcome.id not in self.readings, "readings twice"
            self.readings.setdefault(outcome.id, []).extend(read)


class Counted(Bench):
    """A bench with room for kept prefixes that notes how many tokens each prefill pass is given."""

    def __init__(self, model: Checkpoint, prefix_tokens: int = 8192, **options: Any) -> None:
        super().__init__(model, kv_tokens=16_384, prefix_tokens=prefix_tokens, **options)
        self.given: list[int] = []

    def step(self, times: int = 1) -> list[Any]:
        def counted(cache: KvCache, slots: Any, rows: Any, **where: Any) -> Tensor:
            self.given.append(sum(len(part) for part in rows))
            return plain(cache, slots, rows, **where)

        plain = self.model.prefill
        self.model.prefill = counted  # type: ignore[method-assign]
        try:
            return super().step(times)
        finally:
            del self.model.prefill

    def take(self) -> int:
        """The tokens given since the last call."""
        count, self.given = sum(self.given), []
        return count

    def turn(self, request: int, ids: list[int], **fields: Any) -> tuple[Answer, int]:
        """One request run to its end, and how many tokens were given to prefill."""
        self.take()
        answer = self.ask(request, "", ids=ids, **fields)
        self.run()
        assert answer.finish or request in self.refused
        return answer, self.take()

    @property
    def kept(self) -> int:
        prefixes = self.batch._shared._reuse.prefixes
        return prefixes.tokens if prefixes else 0


def passed(answer: Answer) -> list[int]:
    """The tokens that a model has read by the end of an answer: all but the last sampled one."""
    return [*answer.row.prompt, *answer.tokens][:-1]


def vector_of(outcome: Embedded) -> Tensor:
    """The vector on the wire: little-endian float32."""
    return torch.tensor(struct.unpack(f"<{len(outcome.vector) // 4}f", outcome.vector))


def alone(model: Checkpoint, prompt: str, **fields: Any) -> Answer:
    """The answer to a request that has the whole engine to itself, without any SAE."""
    bench = Bench(model)
    answer = bench.ask(1, prompt, **fields)
    bench.run()
    return answer


def generated(model: Checkpoint, prompt: str, max_tokens: int) -> list[int]:
    """The tokens that transformers' own greedy `generate` gives."""
    return generated_after(model, model.encode(prompt, special=True), max_tokens)


def generated_after(model: Checkpoint, prompt: list[int], max_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=0,
    )
    return out[0, ids.shape[1] :].tolist()


def recomputed(model: Checkpoint, prompt: str, max_tokens: int) -> list[int]:
    """Greedy tokens with the whole text passed through the model for every token: no cache at all."""
    ids = model.encode(prompt, special=True)
    out: list[int] = []
    for _ in range(max_tokens):
        logits = model.model(input_ids=torch.tensor([[*ids, *out]]), use_cache=False).logits
        out.append(int(logits[0, -1].argmax()))
        if out[-1] in model.end_tokens:
            break
    return out


def next_logits(model: Checkpoint, ids: list[int]) -> Tensor:
    """Logits [vocabulary] of the token after these, by one plain pass in float32."""
    return model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def random_sae(d_in: int, d_sae: int = 48, seed: int = 0) -> Sae:
    source = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    return Sae(draw(d_in, d_sae), draw(d_sae), draw(d_sae, d_in), draw(d_in), activation="relu")


def site_of(model: Checkpoint, layer: int = 0, site: str = sites.RESID_POST) -> sites.Site:
    return sites.find(model.model, model.layers, site, layer)


@contextmanager
def logits_edited(model: Checkpoint, edit: Callable[[Tensor], None]) -> Iterator[None]:
    """While open, `edit` changes the logits [rows, T, vocabulary] of every pass in place."""

    def after(_: Any, __: Any, output: Tensor) -> Tensor:
        changed = output.clone()
        edit(changed)
        return changed

    handle = model.model.get_output_embeddings().register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def logits_noted(model: Checkpoint) -> Iterator[list[Tensor]]:
    """While open, the logits [rows, T, vocabulary] of every pass are copied."""
    noted: list[Tensor] = []
    with logits_edited(model, lambda logits: noted.append(logits.clone())):
        yield noted


def states_of(
    model: Checkpoint, ids: list[int], layer: int = 0, site: str = sites.RESID_POST
) -> Tensor:
    """The values [T, width] of a site, by one plain pass over these tokens."""
    found: list[Tensor] = []
    handle = site_of(model, layer, site).hook(lambda value: found.append(value[0].clone()))
    model.model(input_ids=torch.tensor([ids]), use_cache=False)
    handle.remove()
    return found[0]


@contextmanager
def hooked(site: sites.Site, edit: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """A hook of the test's own, independent of the engine's, at the same place. Queries, keys and values are not the
    input or the output of a module, so they have the engine's hook."""

    def moved(value: Tensor) -> Tensor | None:
        edited = edit(value)
        return None if edited is None else edited - value

    def after(_: Any, __: Any, output: Any) -> Any:
        if not isinstance(output, (tuple, list)):
            return edit(output)
        edited = edit(output[0])
        return None if edited is None else type(output)((edited, *output[1:]))

    def before(_: Any, args: Any, kwargs: Any) -> Any:
        edited = edit(args[0] if args else kwargs["hidden_states"])
        if edited is None:
            return None
        if args:
            return (edited, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": edited}

    handle: sites.Handle
    if site.name in OPERAND_SITES:
        handle = site.hook(moved)
    elif site.is_input:
        handle = site.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = site.module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()


def attempt(call: Callable[[], Result]) -> tuple[Result | None, str | None]:
    """What the call returned, or the code it was refused with."""
    try:
        return call(), None
    except Refusal as refusal:
        return None, refusal.code


def words(count: int, start: int = 0) -> str:
    """A piece of the story, `count` characters long."""
    long = STORY * (1 + (start + count) // len(STORY))
    return long[start : start + count]
