"""Thousands of random requests with edits in shared batches, beside an operator's changes and requests that are
cancelled: each answer is what a plain model does with hooks of the tests' own, and a wrong list is refused by its place
and costs no other row anything. EDIT_COMBINATIONS is the number of requests."""

from __future__ import annotations

import base64
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from steerserve.errors import Refusal
from steerserve.messages import Follow, Overlay, Plan
from steerserve.rules.steering import dial, interventions, live
from steerserve.rules.steering.edits import AllOf, AnyOf, Edit, Feature, When
from steerserve.rules.steering.intensity import Range
from steerserve.rules.steering.live import Live
from steerserve.rules.steering.placed import INTERVENTIONS
from steerserve.rules.steering.placing import ModelFacts, placed, standing_of
from steerserve.rules.steering.positions import EVERY, Positions, Selection
from steerserve.rules.steering.vector import Direction
from steerserve.worker.model.checkpoint import Checkpoint
from steerserve.worker.sae import sites
from tests import asking
from tests.worker import models
from tests.worker.hooks.test_edits import KEY, SAE, Case, Hand, drawn, selected
from tests.worker.running import Answer, Bench, attempt, open_checkpoint, words

pytestmark = pytest.mark.soak
COMBINATIONS = int(os.environ.get("EDIT_COMBINATIONS", "10000"))
AT_ONCE = 40
TOKENS = 7
NEAR = 1e-4
"""Two logits, or a reading and its bound, that are so near to each other may be told apart either way."""
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"op": "clamp"}, "op"),
    ({"value": math.inf}, "value"),
    ({"value": None}, "value"),
    ({"feature": {"index": 4096, "sae_id": "sae"}}, "feature.index"),
    ({"feature": {"index": 1, "sae_id": "other"}}, "feature"),
    ({"positions": {"prompt_positions": [999]}}, "positions.prompt_positions"),
    ({"positions": {}}, "positions"),
    ({"when": {"feature": {"index": 1, "sae_id": "sae"}}}, "when"),
    ({"when": {"vector": {"layer": 1, "data": base64.b64encode(bytes(128)).decode()}}}, "when"),
    ({"position": "all"}, "position"),
]
"""Changes of a sound edit, each with the place that its refusal names."""
SOUND = {"op": "set", "feature": {"index": 3, "sae_id": "sae"}, "value": 2.0}


@dataclass(frozen=True, slots=True)
class Attached:
    """The attached SAE as the rules see it."""

    sae_id: str = "sae"
    layer: int = 0
    d_sae: int = SAE.d_sae

    @property
    def key(self) -> str:
        return f"{self.sae_id}@{self.layer}"

    def is_named(self, sae_id: str) -> bool:
        return sae_id == self.sae_id


# ------------------------------------------------------------- a case as a request has it


def written(case: Case) -> list[dict[str, Any]]:
    """The edits of a case in JSON. The values that are added everywhere stand behind the others."""
    made = [_edit(one) for one in case.edits]
    return made + [
        {"op": "add", "feature": _at(Feature(KEY, index)), "value": value}
        for index, value in case.values.items()
    ]


def _at(at: Feature | Direction) -> dict[str, Any]:
    if isinstance(at, Feature):
        return {"index": at.index, "sae_id": "sae"}
    return {"layer": at.layer, "site": at.site, "data": base64.b64encode(at.data).decode()}


def _edit(edit: Edit) -> dict[str, Any]:
    target, is_feature = edit.target, isinstance(edit.at, Feature)
    part: dict[str, Any] = {"feature" if is_feature else "vector": _at(edit.at)}
    if edit.to is not None:
        part |= {"op": "swap", "to": _at(edit.to)}
    elif edit.is_added:
        part |= {"op": "add", "value": target.offset}
        if not is_feature:
            part["unit"] = edit.unit
    elif target.low != -math.inf:
        part |= {"op": "at_least", "value": target.low}
    elif target.high != math.inf:
        part |= {"op": "at_most", "value": target.high}
    elif target.factor == 0.0:
        part |= {"op": "set", "value": target.offset}
    elif not is_feature and -1.0 <= target.factor <= 0.5:
        part |= {"op": "ablate", "value": 1.0 - target.factor}
    else:
        part |= {"op": "scale", "value": target.factor}
    if edit.positions != Positions(Selection(names=(EVERY,))):
        part["positions"] = _positions(edit.positions)
    return part | ({} if edit.when is None else {"when": _when(edit.when)})


def _positions(positions: Positions) -> dict[str, Any]:
    def fields(part: Selection) -> dict[str, Any]:
        return {name: value for name, value in structs.asdict(part).items() if value}

    made = fields(positions.include)
    return made | ({"exclude": fields(positions.exclude)} if positions.exclude else {})


def _when(when: When) -> dict[str, Any]:
    if isinstance(when, AnyOf | AllOf):
        name = "any" if isinstance(when, AnyOf) else "all"
        return {name: [_when(one) for one in when.conditions]}
    made: dict[str, Any] = {"over": when.over}
    made["feature" if isinstance(when.reads, Feature) else "vector"] = _at(when.reads)
    if when.over == "token":
        made["hold"] = "rest" if when.hold is None else when.hold
    bound = "below" if when.above is None else "above"
    return made | {bound: when.below if when.above is None else when.above}


# ------------------------------------------------------------- what a case is with an intensity, and beside another


def at_intensity(case: Case, strength: float) -> Case:
    """What is added is multiplied, and every other edit goes that part of its way."""
    edits = [
        structs.replace(
            one, target=structs.replace(one.target, offset=one.target.offset * strength)
        )
        if one.is_added
        else structs.replace(one, strength=strength)
        for one in case.edits
    ]
    values = {index: value * strength for index, value in case.values.items()}
    return Case(edits, values, case.keeps_norm)


def beside(first: Case, own: Case) -> Case:
    """The edits of `own` after those of `first`, which have their numbers behind those of `own`."""
    count = len(own.edits) + len(own.values)
    later = [structs.replace(one, number=count + one.number) for one in first.edits]
    values = dict(first.values)
    for index, value in own.values.items():
        values[index] = values.get(index, 0.0) + value
    return Case([*later, *own.edits], values, first.keeps_norm or own.keeps_norm)


def _told(plan: dial.Plan) -> Overlay:
    """A plan as the engine gets it."""
    values = {key: dict(features) for key, features in (plan.overlay or {}).items()}
    return Overlay(None, values, plan.edits, plan.modifiers)


class NearHand(Hand):
    """A plain model in which a case is made by hand, and which notes how near a reading comes to its bound."""

    nearest = math.inf

    def _note(self, x: torch.Tensor, at: tuple[int, str]) -> None:
        super()._note(x, at)
        for one in self._case.edits:
            for condition in _conditions(one.when):
                read = self._read.get(condition.reads)
                bound = condition.above if condition.above is not None else condition.below
                if read is not None:
                    numbers = [*read, read[: self._size].mean()]
                    distances = [abs(float(number) - bound) for number in numbers]
                    self.nearest = min(self.nearest, *distances)


def _conditions(when: When | None) -> Iterator[Any]:
    if isinstance(when, AnyOf | AllOf):
        for one in when.conditions:
            yield from _conditions(one)
    elif when is not None:
        yield when


# ------------------------------------------------------------- a round


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that runs. `case` is what its answer is compared with."""

    ids: list[int]
    case: Case
    answer: Answer
    is_own: bool


class Round:
    """Requests of one batch, an operator and cancels beside them."""

    def __init__(self, model: Checkpoint, bench: Bench, seed: int, counts: Counter[str]) -> None:
        self._draw = random.Random(seed)
        self._model, self._bench, self._counts = model, bench, counts
        widths = sites.widths(model.model, model.layers)
        self._facts = ModelFacts(model.layers, widths, {KEY: sites.RESID_POST})
        self._live, self._standing = Live(), Case([])
        self._asked: dict[int, Asked] = {}
        self._cancelled: set[int] = set()

    def run(self) -> None:
        for number in range(AT_ONCE):
            if self._draw.random() < 0.1:
                self._refuse(number)
            else:
                self._ask(number)
            self._disturb()
            if self._draw.random() < 0.3:
                self._bench.step()
        while not self._bench.batch.is_idle:
            self._bench.step()
            self._disturb()
        for number, asked in self._asked.items():
            if number not in self._cancelled:
                self._check(asked)

    def _disturb(self) -> None:
        if self._draw.random() < 0.1:
            self._change()
        running = [
            number
            for number, asked in self._asked.items()
            if asked.answer.finish is None and number not in self._cancelled
        ]
        if running and self._draw.random() < 0.03:
            number = self._draw.choice(running)
            self._bench.batch.cancel(number)
            self._cancelled.add(number)
            self._counts["cancelled"] += 1

    def _change(self) -> None:
        """An operator replaces the live interventions, or switches them off."""
        case = drawn(self._draw, [5, 6, 7]) if self._draw.random() < 0.8 else Case([])
        # positions by their number in the prompt are refused for prompts that lack them
        edits = [
            structs.replace(one, positions=Positions(Selection(names=("output",))))
            for one in case.edits
        ]
        case = replace(case, edits=edits)
        sent = written(case)
        own = interventions.parse({"edits": sent, "preserve_norm": case.keeps_norm}, "")
        made = placed(own, [Attached()], self._facts)
        put = replace(made, standing=standing_of(own, sent, made), modifiers=own.modifiers)
        self._live = live.give(self._live, INTERVENTIONS, put)
        self._standing = case if sent else Case([])
        self._bench.steering.set_live(self._live)
        self._counts["changes of the operator"] += 1

    def _ask(self, number: int) -> None:
        text = words(self._draw.choice([3, 20, 70]), number)
        ids = self._model.encode(text, special=True)
        if self._draw.random() < 0.1:
            case, plan, counted = self._standing, Follow(self._live.epoch), ()
            self._counts["following"] += 1
        else:
            case, plan, counted = self._own(drawn(self._draw, ids))
        answer, code = attempt(
            partial(self._bench.ask, number, text, plan=plan, counted=counted, max_tokens=TOKENS)
        )
        if answer is None:
            # the shortest prompt has one token, and some cases name its second or its last but one
            assert (code, len(ids)) == ("INVALID_PARAMETER", 1)
            self._counts["refused by name"] += 1
            return
        self._asked[number] = Asked(ids, case, answer, isinstance(plan, Overlay))

    def _own(self, case: Case) -> tuple[Case, Plan, tuple[Edit, ...]]:
        """A request with edits of its own: in one of the modes, with or without an intensity."""
        strength = self._draw.choice([None, None, 1.0, 0.25, 1.5])
        mode = self._draw.choice(["replace", "add"])
        self._counts[f"{mode}, {'no intensity' if strength is None else 'intensity'}"] += 1
        self._counts["edits"] += len(case.edits) + len(case.values)
        body = {"edits": written(case), "mode": mode, "preserve_norm": case.keeps_norm}
        plan = self._plan(body, strength)
        whole = beside(self._standing, case) if mode == "add" else case
        return (
            (whole if strength is None else at_intensity(whole, strength)),
            _told(plan),
            plan.added,
        )

    def _plan(self, body: dict[str, Any], strength: float | None) -> dial.Plan:
        own = interventions.parse(body)
        return dial.plan(strength, False, None, self._live, [Attached()], Range(), own, self._facts)

    def _refuse(self, number: int) -> None:
        """A list with one wrong edit among sound ones is refused by the place of the wrong one."""
        change, part = self._draw.choice(FAULTS)
        at = self._draw.randrange(4)
        edits = [SOUND | change if place == at else SOUND for place in range(4)]
        with pytest.raises(Refusal) as refused:
            self._begin(number, {"edits": edits})
        where = f"interventions.edits[{at}].{part}"
        assert refused.value.message.startswith(where), (change, refused.value)
        self._counts["refused by name"] += 1

    def _begin(self, number: int, body: dict[str, Any]) -> None:
        plan = self._plan(body, None)
        self._bench.ask(number, words(20), plan=_told(plan), counted=plan.added)

    # ------------------------------------------------------------- judging

    def _check(self, asked: Asked) -> None:
        last = asked.answer.pieces[-1]
        if last.is_changed:
            assert not asked.is_own
            self._counts["changed while following"] += 1
            return
        out, size = asked.answer.tokens, len(asked.ids)
        hand = NearHand(self._model, SAE, asked.case, size)
        hand.ids = [*asked.ids, *out][:-1]
        with hand.hooked():
            logits = self._model.model(input_ids=torch.tensor([hand.ids]), use_cache=False).logits[
                0
            ]
        best = logits[size - 1 :].float()
        gaps = [float(row.max() - row[token]) for row, token in zip(best, out, strict=True)]
        room = NEAR * float(best.abs().max())
        if max(gaps) > 0:
            self._counts["near ties"] += 1
        is_right = max(gaps) <= room and self._is_told(asked, hand)
        if not is_right and hand.nearest < NEAR:
            self._counts["a reading at its bound"] += 1
            return
        assert is_right, (max(gaps), hand.nearest, asked.case, asking.acts(last))
        self._counts["equal to the reference"] += 1

    def _is_told(self, asked: Asked, hand: Hand) -> bool:
        """Whether the report counts the positions of the reference."""
        if not asked.is_own:
            return True
        told = {acts.number: acts for acts in asking.acts(asked.answer.pieces[-1])}
        for one in asked.case.edits:
            passed = range(len(hand.ids))
            evaluated = sum(selected(one.positions, q, len(asked.ids), hand.ids) for q in passed)
            acted = asked.case.acted.get(one.number, set())
            here = told[one.number]
            if (here.evaluated, here.acted) != (evaluated, len(acted)):
                return False
        return True


@pytest.mark.timeout(4 * 3600)
@torch.inference_mode()
def test_random_edits_equal_the_reference_or_are_refused_by_name(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    opened = [
        open_checkpoint(models.save(name, tmp_path / name)) for name in ("llama", "gpt2", "gemma3")
    ]
    for seed in range(math.ceil(COMBINATIONS / AT_ONCE)):
        model = opened[seed % len(opened)]
        bench = Bench(model, kv_tokens=8192, prefix_tokens=2048)
        with bench.attached(KEY, SAE):
            Round(model, bench, seed, counts).run()
    print(f"{COMBINATIONS} requests: {dict(counts)}")
    assert counts["a reading at its bound"] <= COMBINATIONS // 500
