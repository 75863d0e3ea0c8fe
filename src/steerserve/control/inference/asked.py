"""A request as a client asks for it, before it has its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from steerserve import messages as m
from steerserve.nouns.runs.rules import Run
from steerserve.parts.registry import parts
from steerserve.rules.inference.compare import Sweep
from steerserve.rules.saes.attachment import SaeChoice
from steerserve.rules.steering.request import RequestSteering

SERIAL = "serial"
BATCHED = "cbm"


@dataclass(frozen=True, slots=True)
class AskedSteering:
    """How a request asks to be steered.

    Attributes:
        profile: names a saved profile.
        intensity: how much of the profile, or of the live steering.
        own: the edits that the request brings itself.
        sweep: the intensities of a comparison, with one prompt for each.
        replayed: the recorded answer whose steering the request has.
        is_held: whether the request keeps its steering to its end, whatever an operator changes meanwhile.
        follows_live: whether the live steering steers the request where it names no other.
    """

    profile: str | None = None
    intensity: float | str | None = None
    own: RequestSteering | None = None
    sweep: Sweep | None = None
    replayed: Run | None = None
    is_held: bool = False
    follows_live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the engine gets (`request`), and what only the service needs.

    Attributes:
        request: the request without its steering and its parts, which depend on the resident model.
        steering: None for a request that is never steered.
        parts: what is asked for beside the goal (`parts/`), by the names of the parts.
        answer_id: the id of the answer; empty where the answer has none.
        ignored: locations of the fields that the service does not use.
        may_load: whether the request may cause a load of its model.
        lease: the id of the lease that the client claims to hold, which is a secret.
        is_stream: whether the answer is streamed.
        is_scored_steered: whether a scoring request says that its steering is meant.
        is_keyed_by_id: whether tokens are named by their ids.
        is_base64: whether vectors are written in base64.
        scored_seed: the seed of a scoring request, which draws nothing.
        has_penalty: whether the request names a penalty, also where its two penalties cancel out.
        choice: the SAE to whose features a difference of logits is attributed.
        lens: the id or the name of a trained lens.
    """

    request: m.Request
    steering: AskedSteering | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    answer_id: str = ""
    ignored: tuple[str, ...] = ()
    may_load: bool = True
    lease: str | None = field(default=None, repr=False)
    is_stream: bool = False
    is_scored_steered: bool = False
    is_keyed_by_id: bool = False
    is_base64: bool = False
    scored_seed: int | None = None
    has_penalty: bool = False
    choice: SaeChoice | None = None
    lens: str | None = None

    @property
    def client(self) -> str:
        """The name under which the requests of one client are counted together (`rules/clients.py`)."""
        return self.request.client

    @property
    def goal(self) -> m.Goal:
        return self.request.goal

    @property
    def choices(self) -> int:
        return len(self.request.prompts) * self.goal.rows

    @property
    def seed(self) -> int | None:
        return self.goal.sampling.seed if isinstance(self.goal, m.Generate) else self.scored_seed

    def with_goal(self, **fields: Any) -> Asked:
        """With these fields of its goal."""
        request = structs.replace(self.request, goal=structs.replace(self.goal, **fields))
        return replace(self, request=request)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The sampling parameters that a server with continuous batching serves without a slot."""

    temperature: float
    top_p: float


def choose_backend(asked: Asked, fixed: Fixed | None) -> str:
    """Where a request runs: `cbm`, without a slot, if it has the fixed sampling parameters and uses no other feature;
    otherwise `serial`. `fixed` is None where every request takes a slot."""
    goal, steering = asked.goal, asked.steering or AskedSteering()
    if fixed is None or not isinstance(goal, m.Generate):
        return SERIAL
    sampling = goal.sampling
    is_plain = (
        sampling.temperature == fixed.temperature
        and sampling.top_p == fixed.top_p
        and sampling.repetition_penalty == 1.0
        and not asked.has_penalty
        and sampling.seed is None
        and goal.n == 1
        and replace(steering, is_held=False) == AskedSteering()
        and not any(parts()[name].needs_slot for name in asked.parts)
    )
    return BATCHED if is_plain else SERIAL
