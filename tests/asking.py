"""Requests to an engine, as tests write them: what is asked for beside the goal is given by its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from steerserve import messages as m
from steerserve.control.inference.asked import Asked, AskedSteering
from steerserve.parts.activations.form import ACTIVATIONS, Tap
from steerserve.parts.activations_raw.form import ACTIVATIONS_RAW, RawReads
from steerserve.parts.divergence.form import DIVERGENCE, Divergence
from steerserve.parts.logprobs.form import LOGPROBS, Logprobs
from steerserve.parts.part import Form, Part
from steerserve.parts.pool.form import POOL, Pool
from steerserve.parts.readings.form import READINGS, Readings
from steerserve.parts.registry import parts
from steerserve.parts.response_format.form import RESPONSE_FORMAT, ResponseFormat
from steerserve.parts.steering_report.form import STEERING_REPORT, CountedEdits, EditActs
from steerserve.rules.steering.edits import Edit
from steerserve.rules.steering.vector import Direction

Prompts = Sequence[m.Prompt]


def asked(
    *,
    tap: Tap | None = None,
    pool: Pool | None = None,
    logprobs: Logprobs | None = None,
    divergence: Divergence | None = None,
    readings: Sequence[Direction] = (),
    raw: RawReads | None = None,
    counted: tuple[Edit, ...] | None = None,
    constraint: ResponseFormat | None = None,
) -> dict[str, msgspec.Raw]:
    """The parts of a request."""
    return {
        **ACTIVATIONS.ask(tap),
        **POOL.ask(pool),
        **LOGPROBS.ask(logprobs),
        **DIVERGENCE.ask(divergence),
        **READINGS.ask(Readings(tuple(readings)) if readings else None),
        **ACTIVATIONS_RAW.ask(raw),
        **RESPONSE_FORMAT.ask(constraint),
        **STEERING_REPORT.ask(None if counted is None else CountedEdits(counted)),
    }


PARTS = ("tap", "pool", "logprobs", "divergence", "readings", "raw", "counted", "constraint")
_GOAL = ("n", "is_stream")


def generate(
    number: int,
    prompts: Prompts,
    sampling: m.Sampling | None = None,
    plan: m.Plan = m.Suppressed(),
    **more: Any,
) -> m.Request:
    """A request to write text. `more` has fields of the goal, of the request, and parts."""
    goal = {name: more.pop(name) for name in _GOAL if name in more}
    wanted = {name: more.pop(name) for name in PARTS if name in more}
    return m.Request(
        id=number,
        goal=m.Generate(sampling=sampling or m.Sampling(), **goal),
        prompts=list(prompts),
        plan=plan,
        parts=asked(**wanted),
        **more,
    )


def score(
    number: int,
    prompts: Prompts,
    temperature: float = 1.0,
    top: int | None = None,
    allowed: list[int] | None = None,
    echo: m.Echo | None = None,
    **more: Any,
) -> m.Request:
    """A request to score the tokens after prompts. `more` has fields of the request, and parts."""
    wanted = {name: more.pop(name) for name in PARTS if name in more}
    goal = m.Score(temperature=temperature, top=top, allowed=allowed, echo=echo)
    return m.Request(id=number, goal=goal, prompts=list(prompts), parts=asked(**wanted), **more)


def read(number: int, prompts: Prompts, goal: m.Goal, **more: Any) -> m.Request:
    """A request with another goal."""
    return m.Request(id=number, goal=goal, prompts=list(prompts), **more)


def form(request: m.Request, part: Part[Form, Any]) -> Form | None:
    """What a request asks of a part; None where it does not ask for it."""
    raw = request.parts.get(part.name)
    return None if raw is None else msgspec.msgpack.decode(raw, type=part.form)


def told(outcome: m.Event | m.Outcome, name: str) -> Any:
    """What an outcome has of a part; None where it has nothing."""
    return parts()[name].read(getattr(outcome, "parts", {}))


def acts(piece: m.Piece) -> list[EditActs]:
    """Where the edits acted, as the last piece of a choice tells it."""
    return STEERING_REPORT.read(piece.parts) or []


def to_write(
    *texts: str, sampling: m.Sampling | None = None, n: int = 1, client: str = "", **fields: Any
) -> Asked:
    """What a client asks for that has texts completed. `fields` are those of its steering, and of `Asked`."""
    steering = {name: fields.pop(name) for name in STEERING if name in fields}
    goal = m.Generate(sampling=sampling or m.Sampling(), n=n)
    prompts = [m.Text(text) for text in texts or ("hello",)]
    request = m.Request(goal=goal, prompts=prompts, client=client)
    return Asked(request=request, steering=AskedSteering(**steering), **fields)


STEERING = frozenset(one.name for one in dataclasses.fields(AskedSteering))
