"""Turns a request into rows of the batch: its tokens, its limits, and every refusal that needs facts of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch
from msgspec.msgpack import decode

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.prompts import NamedPrompt, check_ids, max_tokens
from steerserve.messages.stops import stopping_tokens
from steerserve.parts.part import load
from steerserve.parts.registry import parts
from steerserve.parts.row_part import RowFacts, RowPart
from steerserve.rules import bounds
from steerserve.rules.saes.sites import EMBED, RESID_POST, RESID_PRE
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.encoder import Encoder
from steerserve.worker.model.unembedding import LogitDifference, Unembedding
from steerserve.worker.rows import sampling, tail
from steerserve.worker.rows.activations import ActivationReading
from steerserve.worker.rows.attribution import Attribution
from steerserve.worker.rows.constrain import Grammars
from steerserve.worker.rows.goals import PartReading, Pooling, RowGoal, Scoring, Writing
from steerserve.worker.rows.gradients import GradientAttribution
from steerserve.worker.rows.lens import Lens
from steerserve.worker.rows.lens_files import LensFile, check_lens
from steerserve.worker.rows.patching import Patching
from steerserve.worker.rows.rows import BatchRow
from steerserve.worker.rows.states import States, counted, positions_read
from steerserve.worker.rows.steering import RowSteering, TokenFacts
from steerserve.worker.rows.tail import Tail
from steerserve.worker.rows.text import TextStream
from steerserve.worker.sae.sites import direct_path_objection, find


def rows_of(
    request: m.Request,
    goal: m.Generate,
    model: Checkpoint,
    context: int,
    kv_tokens: int,
    saes: HookedSaes,
    *,
    compiled: Mapping[str, Any] = MappingProxyType({}),
) -> list[BatchRow]:
    """The rows of a request, `n` per prompt. `compiled` has what was compiled for parts, by their names.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (an empty prompt), INSUFFICIENT_MEMORY (seeded rows that can
            never be in the cache together); those of `_parts`.
    """
    rows: list[BatchRow] = []
    prompts = _prompts(request)
    stops = goal.sampling.stops
    hidden = stopping_tokens(stops, model.hidden_texts) if stops else {}
    for index, prompt in enumerate(prompts):
        plan = request.plans[index] if request.plans else request.plan
        check_ids(prompt, model.input_vocabulary, "INVALID_PARAMETER")
        with NamedPrompt(prompts, index) as where:
            ids = _ids(prompt, model, "INVALID_PARAMETER")
            limit = max_tokens(goal.sampling, len(ids), context)
            for i in range(goal.n):
                writing = _writing(goal, model, i, ids, hidden)
                row = BatchRow(request.id, index * goal.n + i, ids, plan, writing, limit)
                row.steering = _steering(row, prompt, model)
                row.where = where
                row.label, row.is_stream = request.label, goal.is_stream
                row.parts = _parts(request, row, model, saes, compiled)
                row.may_reuse = all(part.may_reuse for part in row.parts)
                row.needs_exact = goal.is_seeded
                rows.append(row)
    together = len(rows) * max(row.need for row in rows)
    if goal.is_seeded and together > kv_tokens:
        raise Refusal(
            "INSUFFICIENT_MEMORY",
            f"the choices of a seeded request run together and need {together} tokens of KV cache; "
            f"{kv_tokens} are there",
            **memory.described(model.device),
            prompt_tokens=max(len(row.prompt) for row in rows),
            max_new_tokens=max(row.max_tokens for row in rows),
            batch_rows=len(rows),
        )
    return rows


def scoring_rows(
    request: m.Request, goal: m.Score, model: Checkpoint, context: int, saes: HookedSaes
) -> list[BatchRow]:
    """One row per prompt, steered by the plan of the request.

    Raises:
        Refusal: INVALID_SCORING_REQUEST (an id outside the vocabulary, an empty prompt), CONTEXT_LENGTH_EXCEEDED;
            INVALID_PARAMETER when the answer would have too many log-probabilities; those of `_parts`.
    """
    echo = goal.echo
    outside = [i for i in goal.allowed or () if i >= model.vocabulary]
    if outside:
        raise Refusal(
            "INVALID_SCORING_REQUEST",
            f"token id {outside[0]} is outside the vocabulary of {model.vocabulary} tokens",
            param="allowed_token_ids",
            token_id=outside[0],
            vocabulary=model.vocabulary,
        )
    allowed = None if goal.allowed is None else torch.tensor(goal.allowed).to(model.device)
    rows = []
    prompts = _prompts(request)
    for index, prompt in enumerate(prompts):
        check_ids(prompt, model.input_vocabulary, "INVALID_SCORING_REQUEST")
        with NamedPrompt(prompts, index) as where:
            ids = _ids(prompt, model, "INVALID_SCORING_REQUEST")
            max_tokens(m.Sampling(max_tokens=goal.max_tokens), len(ids), context)
            _check_echo(echo, ids, model)
            scoring = Scoring(
                goal.temperature,
                goal.top,
                allowed,
                model.decode_token,
                model.decode_next(ids),
                echo is not None,
            )
            if prompt.place is not None:
                scoring.prompt_text = model.decode(ids, skip_special=False)
            row = BatchRow(request.id, index, ids, request.plan, scoring, where=where)
            row.needs_exact = True
            row.steering = _steering(row, prompt, model)
            row.parts = _parts(request, row, model, saes)
            row.may_reuse = all(part.may_reuse for part in row.parts)
            rows.append(row)
    if echo is not None:
        entries = sum(len(row.prompt) for row in rows) * ((goal.top or 0) + 1)
        if entries > echo.max_entries:
            raise Refusal(
                "INVALID_PARAMETER",
                f"echo: the answer would have {entries} log-probabilities; at most {echo.max_entries}",
                param="echo",
                entries=entries,
                max_entries=echo.max_entries,
            )
    return rows


def start_compiling(request: m.Request, grammars: Grammars) -> dict[str, Future[Any]]:
    """What is compiled for parts of a request before its rows are made, by the names of the parts."""
    known = parts()
    return {
        name: load(known[name].row).compile_form(decode(raw, type=known[name].form), grammars)
        for name, raw in request.parts.items()
        if name in known and known[name].is_compiled
    }


def _prompts(request: m.Request) -> list[m.Tokens]:
    """The prompts of a request, which an engine process gets as tokens."""
    return cast("list[m.Tokens]", request.prompts)


def _steering(row: BatchRow, prompt: m.Tokens, model: Checkpoint) -> RowSteering:
    facts = TokenFacts(
        model.special_tokens,
        model.tokenizer.bos_token_id,
        partial(model.decode, skip_special=False),
    )
    return RowSteering(row.plan, row.prompt, row.out, facts, prompt.spans)


def _parts(
    request: m.Request,
    row: BatchRow,
    model: Checkpoint,
    saes: HookedSaes,
    compiled: Mapping[str, Any] = MappingProxyType({}),
) -> list[RowPart]:
    """What serves the parts of a request for one row, whose steering then knows what they need of it.

    Raises:
        Refusal: FIELD_NOT_HONOURED for a part that this engine does not have; those of the part.
    """
    if not request.parts:
        return []
    known = parts()
    facts = RowFacts(
        row.request,
        row.choice,
        len(request.prompts) * request.goal.rows,
        row.prompt,
        row.out,
        row.max_tokens,
        model.special_tokens,
        model.decode_token,
        lambda key: (saes.find(key).number, saes.sae(key)),
        saes.read_of,
        row.steering.are_at,
        row.steering.acts,
    )
    made = []
    for name, raw in request.parts.items():
        if name not in known:
            why = f"{name}: the engine of this model does not have this part of a request"
            raise Refusal("FIELD_NOT_HONOURED", why, param=name)
        own = replace(facts, compiled=compiled[name]) if name in compiled else facts
        made.append(known[name].make_row(raw, own))
    row.steering.watched = [direction for part in made for direction in part.directions]
    counted = [part.counted for part in made if part.counted is not None]
    row.steering.counted = [edit for edits in counted for edit in edits] if counted else None
    return made


def _check_echo(echo: m.Echo | None, ids: list[int], model: Checkpoint) -> None:
    """Raises:
    Refusal: INVALID_SCORING_REQUEST for a prompt with a token that the model reads and never writes, because such a
        token has no log-probability.
    """
    if echo is not None and max(ids) >= model.vocabulary:
        raise Refusal(
            "INVALID_SCORING_REQUEST",
            f"the token {max(ids)} of the prompt has no log-probability: the model writes {model.vocabulary} tokens",
            param="prompt",
        )


def pooling_rows(request: m.Request, model: Checkpoint | Encoder, context: int) -> list[BatchRow]:
    """One unsteered row per text.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens).
    """
    return _unsteered_rows(request, model, context, lambda _: Pooling(), "input")


def lens_rows(
    request: m.Request,
    goal: m.Lens,
    model: Checkpoint,
    context: int,
    unembedding: Unembedding,
    file: LensFile | None = None,
) -> list[BatchRow]:
    """One unsteered row. `file` is the trained lens that the request names.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_INCOMPATIBLE (the layers are not found); INVALID_PARAMETER for a text
            without tokens, for a layer that the trained lens lacks, and where the answer would be too large;
            LENS_MISMATCH.
    """
    ids = _ids_of_only_text(_prompts(request)[0], model, context)
    last = model.layers - 1
    trained = None
    if file is not None:
        trained, facts = file
        check_lens(facts, model, unembedding)
    known = range(model.layers) if trained is None else sorted({*trained.layers, last})
    layers = known if goal.layers is None else goal.layers
    for place, layer in enumerate(layers):
        if layer not in known:
            why = f"layers[{place}]: the lens has no map of the layer {layer}"
            raise Refusal("INVALID_PARAMETER", why, param=f"layers[{place}]", layers=list(known))
    distributions = len(ids) * len(layers)
    for what, count, most in (
        ("distributions (tokens times layers)", distributions, goal.max_distributions),
        (
            "entries (tokens times layers times top)",
            distributions * goal.top,
            goal.max_entries,
        ),
    ):
        if count > most:
            raise Refusal(
                "INVALID_PARAMETER",
                f"layers: the answer would have {count} {what}; at most {most}",
                param="layers",
                tokens=len(ids),
                count=count,
                maximum=most,
            )
    sites = [find(model.model, model.layers, RESID_POST, layer) for layer in (*layers, last)]
    lens = Lens(sites, layers, goal.top, unembedding, model.decode_token, trained)
    return [BatchRow(request.id, 0, ids, m.Suppressed(), lens)]


def attribution_rows(
    request: m.Request,
    goal: m.Attribute,
    model: Checkpoint,
    context: int,
    unembedding: Unembedding,
    saes: HookedSaes,
) -> list[BatchRow]:
    """One unsteered row. It has the tokens up to the position only, because no later token changes what is there.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_NOT_ATTACHED, INSUFFICIENT_MEMORY as `HookedSaes.sae`; SAE_INCOMPATIBLE
            where the values of the SAE are not a part of the stream after the last layer; INVALID_PARAMETER for a text
            without tokens, a position outside it, or a token outside the vocabulary.
    """
    ids = _ids_of_only_text(_prompts(request)[0], model, context)
    if not -len(ids) <= goal.position < len(ids):
        raise Refusal(
            "INVALID_PARAMETER",
            f"position: {goal.position} is outside the text of {len(ids)} tokens",
            param="position",
            tokens=len(ids),
        )
    for field, token in (("target_token", goal.target), ("against_token", goal.against)):
        if token is not None and token >= model.vocabulary:
            raise Refusal(
                "INVALID_PARAMETER",
                f"{field}: token id {token} is outside the vocabulary of {model.vocabulary} tokens",
                param=field,
                token_id=token,
                vocabulary=model.vocabulary,
            )
    read = ids[: goal.position % len(ids) + 1]
    attached, difference = (
        saes.find(goal.key),
        LogitDifference(unembedding, goal.target, goal.against),
    )
    if goal.method != "direct":
        gradients = _gradient_goal(goal, model, read, difference, unembedding, saes)
        return [BatchRow(request.id, 0, read, m.Suppressed(), gradients)]
    why = direct_path_objection(model.model, model.layers, attached.site, goal.layer)
    if why is not None:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"nothing can be attributed to an SAE at {attached.site.path} ({attached.site.name}): {why}",
            site=attached.site.name,
        )
    last = find(model.model, model.layers, RESID_POST, model.layers - 1)
    direct = Attribution(
        (attached.site, last),
        saes.sae(goal.key),
        difference,
        goal.top,
        unembedding,
        model.decode_token,
    )
    return [BatchRow(request.id, 0, read, m.Suppressed(), direct)]


def _gradient_goal(
    goal: m.Attribute,
    model: Checkpoint,
    ids: list[int],
    difference: LogitDifference,
    unembedding: Unembedding,
    saes: HookedSaes,
) -> GradientAttribution:
    """What attributes a difference of logits after the last of these tokens by gradients.

    Raises:
        Refusal: SAE_INCOMPATIBLE for a site or a model without gradients; INVALID_PARAMETER for more positions than one
            request may have; SAE_NOT_ATTACHED, INSUFFICIENT_MEMORY.
    """
    site = saes.find(goal.key).site
    first = 0 if goal.over == "all" else len(ids) - 1
    if site.name == EMBED:
        why = "method: the token embedding has no gradients; `direct` does not need them"
        raise Refusal("SAE_INCOMPATIBLE", why, site=site.name)
    if len(ids) > model.batched_context or len(model.devices) > 1:
        why = "the model is on several devices"
        if len(ids) > model.batched_context:
            why = "the model reads this text apart from others"
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"method: there are no gradients where {why}; `direct` does not need them",
        )
    steps = goal.steps if goal.method == "integrated" else 1
    read = (len(ids) - first) * steps
    for field, what, count, most in (
        ("position", "tokens up to the position", len(ids), bounds.ATTRIBUTION_TOKENS),
        ("over", "positions times steps", read, bounds.ATTRIBUTION_POSITIONS),
    ):
        if count > most:
            raise Refusal(
                "INVALID_PARAMETER",
                f"{field}: the method {goal.method} would read {count} {what}; at most {most}",
                param=field,
                count=count,
                maximum=most,
            )
    inner = None if site.name == RESID_POST else site
    layer = goal.layer + 1 if inner is None else goal.layer
    tail.check_memory(model, layer, len(ids), len(ids) - first)
    sites = [site, find(model.model, model.layers, RESID_POST, model.layers - 1)]
    if inner is not None:
        sites.append(find(model.model, model.layers, RESID_PRE, layer))
    return GradientAttribution(
        sites,
        saes.sae(goal.key),
        difference,
        goal.top,
        unembedding,
        model.decode_token,
        first=first,
        method=goal.method,
        steps=steps,
        open_tail=lambda stream: Tail(model, layer, inner, ids, stream, first),
    )


def states_rows(
    request: m.Request, goal: m.ReadStates, model: Checkpoint, context: int
) -> list[BatchRow]:
    """One unsteered row per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_INCOMPATIBLE (the site is not found); INVALID_PARAMETER for a text without
            tokens, or without a position that counts.
    """
    sites = [find(model.model, model.layers, goal.site, layer) for layer in goal.layers]

    def states(prompt: m.Tokens) -> States:
        return States(sites, positions_read(goal.places, prompt, model.special_tokens))

    return _unsteered_rows(request, model, context, states)


def activation_rows(
    request: m.Request,
    goal: m.ReadActivations,
    model: Checkpoint,
    context: int,
    saes: HookedSaes,
) -> list[BatchRow]:
    """One unsteered row per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_NOT_ATTACHED, INSUFFICIENT_MEMORY as `HookedSaes.sae`; INVALID_PARAMETER
            for a text without tokens.
    """
    sites = [saes.find(key).site for key in goal.keys]
    encoders = [saes.sae(key) for key in goal.keys]

    def reading(prompt: m.Tokens) -> ActivationReading:
        return ActivationReading(sites, encoders, counted(prompt, model.special_tokens))

    return _unsteered_rows(request, model, context, reading)


def part_rows(
    request: m.Request, model: Checkpoint, context: int, saes: HookedSaes
) -> list[BatchRow]:
    """One row per prompt, steered by the plan of the request, for its parts. Its prompt begins no other prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED; INVALID_PARAMETER for a text without tokens; those of `_parts`.
    """
    rows = []
    prompts = _prompts(request)
    for index, prompt in enumerate(prompts):
        with NamedPrompt(prompts, index, "text") as where:
            ids = _ids_of_text(prompt, model, context)
            row = BatchRow(request.id, index, ids, request.plan, PartReading(), where=where)
            row.steering = _steering(row, prompt, model)
            row.parts = _parts(request, row, model, saes)
        rows.append(row)
    return rows


def patch_rows(
    request: m.Request,
    goal: m.Patch,
    model: Checkpoint,
    context: int,
    unembedding: Callable[[], Unembedding],
) -> list[BatchRow]:
    """One unsteered row, which reads the text that is patched.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED; SAE_INCOMPATIBLE for a site that a layer does not have; INVALID_PARAMETER for
            a text without tokens.
    """
    base = _ids_of_only_text(_prompts(request)[0], model, context)
    _ids_of_only_text(m.Tokens(goal.source), model, context)
    patching = Patching(model, base, goal, unembedding)
    return [BatchRow(request.id, 0, base, m.Suppressed(), patching)]


def _unsteered_rows(
    request: m.Request,
    model: Checkpoint | Encoder,
    context: int,
    make_goal: Callable[[m.Tokens], RowGoal],
    field: str = "text",
) -> list[BatchRow]:
    """One unsteered row per prompt, whose texts are named by `field` in refusals.

    Raises:
        Refusal: as `_ids_of_text`, and as `make_goal`.
    """
    rows = []
    prompts = _prompts(request)
    for index, prompt in enumerate(prompts):
        with NamedPrompt(prompts, index, field) as where:
            ids, goal = _ids_of_text(prompt, model, context), make_goal(prompt)
        rows.append(BatchRow(request.id, index, ids, m.Suppressed(), goal, where=where))
    return rows


def _ids_of_only_text(prompt: m.Tokens, model: Checkpoint, context: int) -> list[int]:
    """The tokens of the one text of a request.

    Raises:
        Refusal: as `_ids_of_text`.
    """
    with NamedPrompt([prompt], 0, "text"):
        return _ids_of_text(prompt, model, context)


def _ids_of_text(prompt: m.Tokens, model: Checkpoint | Encoder, context: int) -> list[int]:
    """The tokens of a text that is only read.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens).
    """
    ids = _ids(prompt, model, "INVALID_PARAMETER")
    max_tokens(m.Sampling(max_tokens=0), len(ids), context)
    return ids


def shortest_first(rows: list[BatchRow]) -> list[BatchRow]:
    """The rows of a scoring or embedding request, ordered by length so that passes have little padding. The
    order is free, because each answer has the number of its choice."""
    return sorted(rows, key=lambda row: len(row.prompt))


def _ids(prompt: m.Tokens, model: Checkpoint | Encoder, empty: str) -> list[int]:
    """The tokens of a prompt. `empty` is the code of the refusal of a prompt without tokens.

    Raises:
        Refusal: INVALID_PARAMETER for a token that the model has no embedding for. On a GPU, such a token would end
            the process.
    """
    if not prompt.ids:
        raise Refusal(empty, "the prompt has no tokens", param="prompt")
    if max(prompt.ids) >= model.input_vocabulary:
        raise Refusal(
            "INVALID_PARAMETER",
            f"the model's tokenizer gives the token {max(prompt.ids)}, and the model has only "
            f"{model.input_vocabulary} tokens",
            param="prompt",
        )
    return prompt.ids


def _writing(
    goal: m.Generate,
    model: Checkpoint,
    repeat: int,
    ids: list[int],
    hidden: Mapping[int, str],
) -> Writing:
    wanted, seen = goal.sampling, None
    if wanted.repetition_penalty != 1.0:
        seen = torch.zeros(model.vocabulary, dtype=torch.bool, device=model.device)
        seen[torch.tensor(ids, device=model.device)] = True
    # the prompts of one request share a seed; the choices of a prompt have different seeds
    choice = sampling.Sampler(
        wanted.temperature,
        wanted.top_p,
        wanted.repetition_penalty,
        sampling.generator(wanted.seed, repeat),
        seen,
    )
    text = TextStream(model.decode, ids, wanted.stops, hidden)
    return Writing(choice, text)
