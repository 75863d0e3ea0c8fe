"""Turns a command into rows of the batch: its tokens, its limits, and every refusal that needs facts of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.prompts import NamedPrompt, check_ids, max_tokens
from steerserve.messages.stops import stopping_tokens
from steerserve.rules import bounds
from steerserve.rules.inference import activations
from steerserve.rules.saes.sites import EMBED, RESID_POST, RESID_PRE
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.vector import Direction
from steerserve.worker import memory
from steerserve.worker.hooks.hooks import HookedSaes
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.model.encoder import Encoder
from steerserve.worker.model.unembedding import LogitDifference, Unembedding
from steerserve.worker.rows import sampling, tail
from steerserve.worker.rows.activations import ActivationReading
from steerserve.worker.rows.attribution import Attribution
from steerserve.worker.rows.constrain import RowConstraint
from steerserve.worker.rows.divergence import Diverging
from steerserve.worker.rows.gradients import GradientAttribution
from steerserve.worker.rows.lens import Lens
from steerserve.worker.rows.lens_files import LensFile, check_lens
from steerserve.worker.rows.logprobs import Written
from steerserve.worker.rows.rows import BatchRow, Pooling, Scoring, Writing
from steerserve.worker.rows.states import States, counted, positions_read
from steerserve.worker.rows.steering import RowSteering, TokenFacts
from steerserve.worker.rows.tail import Tail
from steerserve.worker.rows.text import TextStream
from steerserve.worker.sae.sites import direct_path_objection, find


def rows_of(
    command: m.Generate,
    model: Checkpoint,
    context: int,
    kv_tokens: int,
    *,
    constrain: Callable[[], RowConstraint] | None = None,
) -> list[BatchRow]:
    """The rows of a request, `n` per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (an empty prompt), SAE_ACTIVATIONS_REFUSED,
            INSUFFICIENT_MEMORY (seeded rows that can never be in the cache together); INVALID_PARAMETER when the answer
            may have too many log-probabilities.
    """
    rows: list[BatchRow] = []
    stops = command.sampling.stops
    hidden = stopping_tokens(stops, model.hidden_texts) if stops else {}
    for index, prompt in enumerate(command.prompts):
        plan = command.plans[index] if command.plans else command.plan
        check_ids(prompt, model.input_vocabulary, "INVALID_PARAMETER")
        with NamedPrompt(command.prompts, index) as where:
            ids = _ids(prompt, model, "INVALID_PARAMETER")
            limit = max_tokens(command.sampling, len(ids), context)
            for i in range(command.n):
                goal = _writing(command, model, i, ids, constrain, hidden)
                row = BatchRow(command.id, index * command.n + i, ids, plan, goal, limit)
                row.steering = _steering(row, prompt, model, command.counted, command.readings)
                row.where = where
                row.label, row.is_stream = command.label, command.is_stream
                _check_tap(command.tap, row, len(command.prompts))
                _check_logprobs(command.logprobs, row, command.n * len(command.prompts))
                row.may_reuse = command.tap is None
                row.needs_exact = command.sampling.seed is not None
                rows.append(row)
    together = len(rows) * max(row.need for row in rows)
    if command.sampling.seed is not None and together > kv_tokens:
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


def scoring_rows(command: m.Score, model: Checkpoint, context: int) -> list[BatchRow]:
    """One row per prompt, steered by the plan of the command.

    Raises:
        Refusal: INVALID_SCORING_REQUEST (an id outside the vocabulary, an empty prompt), CONTEXT_LENGTH_EXCEEDED,
            SAE_ACTIVATIONS_REFUSED; INVALID_PARAMETER when the answer would have too many log-probabilities.
    """
    echo = command.echo
    outside = [i for i in command.allowed or () if i >= model.vocabulary]
    if outside:
        raise Refusal(
            "INVALID_SCORING_REQUEST",
            f"token id {outside[0]} is outside the vocabulary of {model.vocabulary} tokens",
            param="allowed_token_ids",
            token_id=outside[0],
            vocabulary=model.vocabulary,
        )
    allowed = None if command.allowed is None else torch.tensor(command.allowed).to(model.device)
    rows = []
    for index, prompt in enumerate(command.prompts):
        check_ids(prompt, model.input_vocabulary, "INVALID_SCORING_REQUEST")
        with NamedPrompt(command.prompts, index) as where:
            ids = _ids(prompt, model, "INVALID_SCORING_REQUEST")
            max_tokens(m.Sampling(max_tokens=echo.max_tokens if echo else 1), len(ids), context)
            _check_echo(echo, ids, model)
            goal = Scoring(
                command.temperature,
                command.top,
                allowed,
                model.decode_token,
                model.decode_next(ids),
                echo is not None,
            )
            if prompt.place is not None:
                goal.prompt_text = model.decode(ids, skip_special=False)
            row = BatchRow(command.id, index, ids, command.plan, goal, where=where)
            row.may_reuse = command.tap is None and command.pool is None
            row.needs_exact = True
            row.steering = _steering(row, prompt, model)
            _check_tap(command.tap, row)
            rows.append(row)
    if echo is not None:
        entries = sum(len(row.prompt) for row in rows) * ((command.top or 0) + 1)
        if entries > echo.max_entries:
            raise Refusal(
                "INVALID_PARAMETER",
                f"echo: the answer would have {entries} log-probabilities; at most {echo.max_entries}",
                param="echo",
                entries=entries,
                max_entries=echo.max_entries,
            )
    return rows


def _steering(
    row: BatchRow,
    prompt: m.Tokens,
    model: Checkpoint,
    counted: tuple[Edit, ...] | None = None,
    watched: Sequence[Direction] = (),
) -> RowSteering:
    facts = TokenFacts(
        model.special_tokens,
        model.tokenizer.bos_token_id,
        partial(model.decode, skip_special=False),
    )
    return RowSteering(row.plan, row.prompt, row.out, facts, prompt.spans, counted, watched)


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


def pooling_rows(command: m.Embed, model: Checkpoint | Encoder, context: int) -> list[BatchRow]:
    """One unsteered row per text.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens).
    """
    rows = []
    for index, prompt in enumerate(command.prompts):
        with NamedPrompt(command.prompts, index, "input") as where:
            ids = _ids(prompt, model, "INVALID_PARAMETER")
            max_tokens(m.Sampling(max_tokens=0), len(ids), context)
            rows.append(BatchRow(command.id, index, ids, m.Suppressed(), Pooling(), where=where))
    return rows


def lens_rows(
    command: m.Lens,
    model: Checkpoint,
    context: int,
    unembedding: Unembedding,
    file: LensFile | None = None,
) -> list[BatchRow]:
    """One unsteered row. `file` is the trained lens that the command names.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_INCOMPATIBLE (the layers are not found); INVALID_PARAMETER for a text
            without tokens, for a layer that the trained lens lacks, and where the answer would be too large;
            LENS_MISMATCH.
    """
    ids = _read(command.prompts[0], model, context)
    last = model.layers - 1
    trained = None
    if file is not None:
        trained, facts = file
        check_lens(facts, model, unembedding)
    known = range(model.layers) if trained is None else sorted({*trained.layers, last})
    layers = known if command.layers is None else command.layers
    for place, layer in enumerate(layers):
        if layer not in known:
            why = f"layers[{place}]: the lens has no map of the layer {layer}"
            raise Refusal("INVALID_PARAMETER", why, param=f"layers[{place}]", layers=list(known))
    distributions = len(ids) * len(layers)
    for what, count, most in (
        ("distributions (tokens times layers)", distributions, command.max_distributions),
        (
            "entries (tokens times layers times top)",
            distributions * command.top,
            command.max_entries,
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
    goal = Lens(sites, layers, command.top, unembedding, model.decode_token, trained)
    return [BatchRow(command.id, 0, ids, m.Suppressed(), goal)]


def attribution_rows(
    command: m.Attribute,
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
    ids = _read(command.prompts[0], model, context)
    if not -len(ids) <= command.position < len(ids):
        raise Refusal(
            "INVALID_PARAMETER",
            f"position: {command.position} is outside the text of {len(ids)} tokens",
            param="position",
            tokens=len(ids),
        )
    for field, token in (("target_token", command.target), ("against_token", command.against)):
        if token is not None and token >= model.vocabulary:
            raise Refusal(
                "INVALID_PARAMETER",
                f"{field}: token id {token} is outside the vocabulary of {model.vocabulary} tokens",
                param=field,
                token_id=token,
                vocabulary=model.vocabulary,
            )
    read = ids[: command.position % len(ids) + 1]
    attached, difference = (
        saes.find(command.key),
        LogitDifference(unembedding, command.target, command.against),
    )
    if command.method != "direct":
        goal = _gradient_goal(command, model, read, difference, unembedding, saes)
        return [BatchRow(command.id, 0, read, m.Suppressed(), goal)]
    why = direct_path_objection(model.model, model.layers, attached.site, command.layer)
    if why is not None:
        raise Refusal(
            "SAE_INCOMPATIBLE",
            f"nothing can be attributed to an SAE at {attached.site.path} ({attached.site.name}): {why}",
            site=attached.site.name,
        )
    last = find(model.model, model.layers, RESID_POST, model.layers - 1)
    direct = Attribution(
        (attached.site, last),
        saes.sae(command.key),
        difference,
        command.top,
        unembedding,
        model.decode_token,
    )
    return [BatchRow(command.id, 0, read, m.Suppressed(), direct)]


def _gradient_goal(
    command: m.Attribute,
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
    site = saes.find(command.key).site
    first = 0 if command.over == "all" else len(ids) - 1
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
    steps = command.steps if command.method == "integrated" else 1
    for field, count, most in (
        ("position", len(ids), bounds.ATTRIBUTION_TOKENS),
        ("over", (len(ids) - first) * steps, bounds.ATTRIBUTION_POSITIONS),
    ):
        if count > most:
            what = "tokens up to the position" if field == "position" else "positions times steps"
            raise Refusal(
                "INVALID_PARAMETER",
                f"{field}: the method {command.method} would read {count} {what}; at most {most}",
                param=field,
                count=count,
                maximum=most,
            )
    is_between = site.name == RESID_POST
    layer = command.layer + 1 if is_between else command.layer
    tail.check_memory(model, layer, len(ids), len(ids) - first)
    sites = [site, find(model.model, model.layers, RESID_POST, model.layers - 1)]
    if not is_between:
        sites.append(find(model.model, model.layers, RESID_PRE, layer))
    return GradientAttribution(
        sites,
        saes.sae(command.key),
        difference,
        command.top,
        first,
        command.method,
        steps,
        unembedding,
        model.decode_token,
        lambda stream: Tail(model, layer, None if is_between else site, ids, stream, first),
    )


def states_rows(command: m.ReadStates, model: Checkpoint, context: int) -> list[BatchRow]:
    """One unsteered row per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_INCOMPATIBLE (the site is not found); INVALID_PARAMETER for a text without
            tokens, or without a position that counts.
    """
    sites = [find(model.model, model.layers, command.site, layer) for layer in command.layers]
    rows = []
    for index, prompt in enumerate(command.prompts):
        with NamedPrompt(command.prompts, index, "text") as where:
            ids = _ids(prompt, model, "INVALID_PARAMETER")
            max_tokens(m.Sampling(max_tokens=0), len(ids), context)
            goal = States(sites, positions_read(command.places, prompt, model.special_tokens))
        rows.append(BatchRow(command.id, index, ids, m.Suppressed(), goal, where=where))
    return rows


def activation_rows(
    command: m.ReadActivations, model: Checkpoint, context: int, saes: HookedSaes
) -> list[BatchRow]:
    """One unsteered row per prompt.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, SAE_NOT_ATTACHED, INSUFFICIENT_MEMORY as `HookedSaes.sae`; INVALID_PARAMETER
            for a text without tokens.
    """
    sites = [saes.find(key).site for key in command.keys]
    encoders = [saes.sae(key) for key in command.keys]
    rows = []
    for index, prompt in enumerate(command.prompts):
        with NamedPrompt(command.prompts, index, "text") as where:
            ids = _ids(prompt, model, "INVALID_PARAMETER")
            max_tokens(m.Sampling(max_tokens=0), len(ids), context)
            goal = ActivationReading(sites, encoders, counted(prompt, model.special_tokens))
        rows.append(BatchRow(command.id, index, ids, m.Suppressed(), goal, where=where))
    return rows


def _read(prompt: m.Tokens, model: Checkpoint, context: int) -> list[int]:
    """The tokens of a text that is only read.

    Raises:
        Refusal: CONTEXT_LENGTH_EXCEEDED, INVALID_PARAMETER (a text without tokens).
    """
    with NamedPrompt([prompt], 0, "text"):
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


def _check_logprobs(wanted: m.Logprobs | None, row: BatchRow, rows: int) -> None:
    """Check that the answer has room for the log-probabilities of `rows` rows like this one.

    Raises:
        Refusal: INVALID_PARAMETER.
    """
    if wanted is None:
        return
    sides = wanted.has_steered + wanted.has_plain
    entries = rows * row.max_tokens * sides * (wanted.top + 1)
    if entries > wanted.max_entries:
        raise Refusal(
            "INVALID_PARAMETER",
            f"return_logprobs: the answer may have {entries} log-probabilities; at most {wanted.max_entries}; "
            "ask for a smaller max_tokens or top",
            param="return_logprobs",
            entries=entries,
            max_entries=wanted.max_entries,
        )


def _check_tap(tap: m.Tap | None, row: BatchRow, rows: int = 1) -> None:
    """Check that the answer has room for the activations of `rows` rows like this one.

    Raises:
        Refusal: SAE_ACTIVATIONS_REFUSED.
    """
    if tap is not None:
        activations.check_entries(
            tap.positions, rows * tap.top_k, len(row.prompt), row.max_tokens, tap.max_entries
        )


def _writing(
    command: m.Generate,
    model: Checkpoint,
    repeat: int,
    ids: list[int],
    constrain: Callable[[], RowConstraint] | None,
    hidden: Mapping[int, str],
) -> Writing:
    wanted, seen = command.sampling, None
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
    written: Written | Diverging | None = None
    if command.logprobs is not None:
        written = Written(command.logprobs, model.decode_token)
    elif command.divergence is not None:
        written = Diverging(command.divergence)
    return Writing(choice, text, constrain() if constrain else None, written)
