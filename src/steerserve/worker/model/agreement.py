"""Whether passes of the service give the logits of a plain pass of the architecture: whether they are as near to those
of float32 as the plain pass in the model's precision is. This is checked on the loaded model over natural text, and
decides how its rows are stepped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import structlog
import torch
from torch import Tensor, nn

from steerserve.rules.inference import stepping
from steerserve.rules.models import nearness
from steerserve.rules.models.nearness import Distance, Exactness
from steerserve.worker import memory
from steerserve.worker.model import plain, truth
from steerserve.worker.model.comparing import own_code
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.model.layers import replaced_forward
from steerserve.worker.model.plain import Memory, PlainPasses
from steerserve.worker.model.transformer import described_error

if TYPE_CHECKING:
    from steerserve.worker.model.checkpoint import Checkpoint

_STEPS = 24
"""The last tokens of the text, which decode passes read."""

_SHORT_STEPS = 4
"""As `_STEPS`, for passes over one row at a time, which may read the whole text again in each."""

_PART = 13
"""The first part of a prompt that is read in parts."""

_EACH = 12
"""Of so many positions the logits of one are looked at for what is no number."""

_UNSUPPORTED = (
    ValueError,
    TypeError,
    RuntimeError,
    LookupError,
    AttributeError,
    AssertionError,
    ImportError,
)

log = structlog.get_logger(__name__)
Result = TypeVar("Result")

BytesByDevice = dict[torch.device, int]


class Disagreement(Exception):
    """Passes of one kind do not give the logits of a plain pass, or raise an error. The text says why."""


def token_bytes(model: Checkpoint) -> BytesByDevice:
    """The bytes of KV per token by device, of a model whose passes are known to agree."""
    cache = model.cache()
    model.prefill(cache, [cache.open(64)], [[0]], start=0)
    return cache.bytes_by_device


class Agreement:
    """The comparisons of one model with the float32 pass of its own code, over natural text, by the last hidden states,
    which the output embedding turns into logits. `own` is the distance of a plain pass in the model's precision. Where
    there is no memory for a pass in float32, or the model's code cannot make one, the plain pass stands for it, and
    `knows_truth` is false.

    Raises:
        Disagreement: the plain pass cannot be made.
    """

    def __init__(self, model: Checkpoint) -> None:
        self._model = model
        self._before = plain.held_by_modules(model.model)
        tokens = truth.natural_tokens(model.text_tokens, model.vocabulary)
        count = truth.positions(model.parameters, is_on_host=model.device.type == "cpu")
        self.ids: list[int] = tokens[: min(count, model.model_max_context)]
        self._own_states = _tried(lambda: self._plain(len(self.ids)))
        self._true, self.knows_truth = self._in_float32()
        self.own = truth.distance(truth.off(self._own_states, self._true))

    @property
    def _count(self) -> int:
        return len(self.ids)

    def broken(self) -> list[int]:
        """The tokens whose logits are no numbers in a plain pass."""
        head = self._model.model.get_output_embeddings()
        logits: Tensor = head(self._own_states[::_EACH])
        return logits.isnan().any(0).nonzero().flatten().tolist()

    def batch(self) -> tuple[BytesByDevice, Exactness]:
        """Compare passes of the running batch. Returns the bytes of KV per token by device, and how exact they are.

        Raises:
            Disagreement.
        """
        return _tried(self._batch)

    def plain(self, passes: PlainPasses, *, learns: bool) -> None:
        """Compare passes over two rows that take turns. With `learns` the passes first learn which tensors of a row the
        modules hold.

        Raises:
            Disagreement.
        """
        if learns:
            _tried(lambda: passes.learn(self.ids, self._before))
        _tried(lambda: self._turns(passes))

    def parts(self, passes: PlainPasses) -> bool:
        """Whether a prompt may be read in parts."""
        try:
            _tried(lambda: self._in_parts(passes))
        except Disagreement:
            return False
        return True

    def one_direction(self) -> None:
        """Check that no token changes the logits of the tokens before it.

        Raises:
            Disagreement.
        """
        try:
            cut = self._count - _SHORT_STEPS
            _tried(lambda: self._compare({cut - 1: self._plain(cut)[-1]}))
        except Disagreement as why:
            raise Disagreement(f"later tokens change the logits of earlier ones: {why}") from why

    def measure(self, passes: PlainPasses) -> None:
        """Set the bytes of a token by device, none where a row holds nothing between passes, and `state_tokens`.

        The state of a row without a cache that grows counts as the tokens of a whole context.
        """
        count, cache = self._count, passes.cache()
        cut = count - 2
        slot = cache.open(count)
        passes.prefill(cache, [slot], [self.ids[:cut]], start=0)
        before = plain.bytes_by_device(slot)
        for at in range(cut, count):
            passes.decode_step(cache, [slot], [self.ids[at]], [at])
        for device, size in plain.bytes_by_device(slot).items():
            grown = max(0, size - before.get(device, 0)) // (count - cut)
            state = max(0, size - grown * count)
            each = grown or max(1, -(-state // self._model.model_max_context))
            passes.kv_bytes_by_device[device] = each
            passes.state_tokens = max(passes.state_tokens, -(-state // each))

    # ------------------------------------------------------------- inside

    def _plain(self, count: int) -> Tensor:
        """The last hidden states [count, hidden] of a plain pass over the first `count` tokens."""
        model = self._model
        tokens = torch.tensor([self.ids[:count]], device=model.device)
        with self._kept(has_logits=False) as kept, own_code(model.model):
            model.model(**plain.whole(model.model, tokens))
        (hidden,) = kept
        return hidden[0]

    def _in_float32(self) -> tuple[Tensor, bool]:
        """The last hidden states [T, hidden] of a plain pass in float32, and whether it could be made."""
        try:
            with truth.in_float32(self._model.model):
                return self._plain(len(self.ids)), True
        except _UNSUPPORTED as error:
            log.warning("exactness_unknown", why=described_error(error))
            memory.recover(error)
        return self._own_states.float(), False

    @contextmanager
    def _kept(self, *, has_logits: bool = True) -> Iterator[list[Tensor]]:
        """The last hidden states [rows, T, hidden] of each pass while open, before the output embedding. Without
        `has_logits`, the passes give zeros as logits: an output embedding in float32 would take much memory."""
        kept: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            kept.append(inputs[0])

        head = self._model.model.get_output_embeddings()
        with ExitStack() as stack:
            stack.callback(head.register_forward_pre_hook(keep, prepend=True).remove)
            if not has_logits:
                zeros = replaced_forward(head, lambda x: x.new_zeros(*x.shape[:-1], 1))
                stack.enter_context(zeros)
            yield kept

    def _compare(self, states: Mapping[int, Tensor]) -> Distance:
        """Compare last hidden states [hidden] by the places of their tokens. Returns their distance.

        Raises:
            Disagreement.
        """
        places = sorted(states)
        hidden = torch.stack([states[place] for place in places])
        found = truth.distance(truth.off(hidden, self._true[places]))
        if not nearness.is_right(found, self.own, truth.named(self._model.dtype)):
            raise Disagreement(
                f"the last hidden states are off those of float32 by {found.mean:.3g}, and those of the model's own "
                f"code by {self.own.mean:.3g}"
            )
        return found

    def _batch(self) -> tuple[BytesByDevice, Exactness]:
        model, ids, count = self._model, self.ids, self._count
        cut = max(2, count - _STEPS)
        short = cut // 2
        cache = model.cache()
        rooms: list[CacheSlot] = [cache.open(stepping.up(count, 32)) for _ in range(2)]
        with self._kept() as kept:
            model.prefill(cache, rooms, [ids[:cut], ids[:short]], start=0)
            states = dict(enumerate(kept.pop()[0][:cut]))
            for at in range(cut, count):
                beside = at - cut + short
                order = [0, 1] if at % 2 else [1, 0]
                rows = ([ids[at], ids[beside]], [at, beside])
                tokens, positions = ([values[place] for place in order] for values in rows)
                model.decode_step(cache, [rooms[place] for place in order], tokens, positions)
                states[at] = kept.pop()[order.index(0)][0]
                if at == cut:
                    cache.grow(rooms[0], stepping.up(count, 32) + 32)
        found, dtype = self._compare(states), truth.named(self._model.dtype)
        is_near = nearness.is_near(found, self.own, dtype)
        return cache.bytes_by_device, Exactness(count, found, self.own, is_near)

    def _turns(self, passes: PlainPasses) -> None:
        """Two rows take turns: one with the prompt, and one whose prompt is a single token."""
        ids, count, cache = self.ids, self._count, passes.cache()
        cut = count - _SHORT_STEPS
        long, short = cache.open(count), cache.open(count)
        states: dict[int, Tensor] = {}
        with self._kept() as kept:
            passes.prefill(cache, [long], [ids[:cut]], start=0)
            passes.prefill(cache, [short], [ids[:1]], start=0)
            for step, at in enumerate(range(cut, count)):
                passes.decode_step(cache, [long], [ids[at]], [at])
                states[at] = kept[-1][0, -1]
                if step < 2:
                    passes.decode_step(cache, [short], [ids[1 + step]], [1 + step])
                    states[1 + step] = kept[-1][0, -1]
        self._compare(states)

    def _in_parts(self, passes: PlainPasses) -> None:
        ids, count, cache = self.ids, self._count, passes.cache()
        cut = count - 1
        slot = cache.open(count)
        with self._kept() as kept:
            passes.prefill(cache, [slot], [ids[:_PART]], start=0)
            passes.prefill(cache, [slot], [ids[_PART:cut]], start=_PART)
            read = kept[-1][0, -1]
            passes.decode_step(cache, [slot], [ids[cut]], [cut])
        self._compare({cut - 1: read, cut: kept[-1][0, -1]})


def plain_passes(model: Checkpoint, agreement: Agreement) -> PlainPasses:
    """Passes over one row at a time: with the first kind of memory of a row for which they agree with the plain pass.

    Raises:
        Disagreement: a later token changes the logits of earlier ones.
    """
    for kind in (Memory.DYNAMIC, Memory.OWN):
        for learns in (False, True):
            passes = PlainPasses(model, kind)
            with suppress(Disagreement):
                agreement.plain(passes, learns=learns)
                agreement.measure(passes)
                if passes.kv_bytes_by_device:
                    passes.takes_parts = agreement.parts(passes)
                    return passes
    agreement.one_direction()
    passes = PlainPasses(model, Memory.NOTHING)
    passes.kv_bytes_by_device[model.device] = 1
    return passes


def _tried(call: Callable[[], Result]) -> Result:
    """The result of a call.

    Raises:
        Disagreement: the call raised one of the errors that an architecture may raise for passes that it does not
            support.
    """
    try:
        return call()
    except _UNSUPPORTED as error:
        if memory.is_exhausted(error):
            raise
        raise Disagreement(described_error(error)) from error
