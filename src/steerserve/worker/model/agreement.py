"""Whether passes of the service give the logits of one plain pass of the architecture. This is checked on the loaded
model, and decides how its rows are stepped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from steerserve.rules.models.precision import Held, Scheme
from steerserve.worker import memory
from steerserve.worker.model import plain
from steerserve.worker.model.invariance import PassModel
from steerserve.worker.model.kv import CacheSlot
from steerserve.worker.model.plain import Host, Memory, PlainPasses
from steerserve.worker.model.transformer import described_error

TOKENS = 24
"""The tokens of the row that is compared."""

_CUT = TOKENS - 2
_PART = 13
"""The first part of the prompt, where the prompt is read in parts."""

_TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.2}
_QUANTIZED_TOLERANCE = 0.2
"""The kernels of quantized weights may compute in half precision, whatever the dtype of the model is."""
_INT8_TOLERANCE = 0.5
"""With LLM.int8, activations are rounded to 8 bits too, except for columns with an outlier in any row of the pass.
Two correct passes with different rows may therefore differ by that rounding."""

_UNSUPPORTED = (
    ValueError,
    TypeError,
    RuntimeError,
    LookupError,
    AttributeError,
    AssertionError,
    ImportError,
)

Result = TypeVar("Result")

BytesByDevice = dict[torch.device, int]


class CheckedModel(PassModel, Host, Protocol):
    """What is needed of a checkpoint."""

    held: Held
    rounds_rows: bool
    dtype: torch.dtype


class Disagreement(Exception):
    """Passes of one kind do not give the logits of a plain pass, or raise an error. The text says why."""


class Agreement:
    """The comparisons of one model. `ids` are the tokens, `truth` [T, vocabulary] the logits of a plain pass over them.

    Raises:
        Disagreement: the plain pass cannot be made.
    """

    def __init__(self, model: CheckedModel) -> None:
        self._model = model
        self._before = plain.held_by_modules(model.model)
        source = torch.Generator().manual_seed(0)
        self.ids: list[int] = torch.randint(
            0, model.vocabulary, (TOKENS,), generator=source
        ).tolist()
        self.truth = _tried(lambda: self._plain(TOKENS))

    def batch(self) -> BytesByDevice:
        """Compare passes of the running batch. Returns the bytes of KV per token by device.

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
            _tried(lambda: self._compare(self._plain(_CUT)[-1], _CUT - 1))
        except Disagreement as why:
            raise Disagreement(f"later tokens change the logits of earlier ones: {why}") from why

    def measure(self, passes: PlainPasses) -> None:
        """Set the bytes of a token by device, none where a row holds nothing between passes, and `state_tokens`.

        The state of a row without a cache that grows counts as the tokens of a whole context.
        """
        cache = passes.cache()
        slot = cache.open(TOKENS)
        passes.prefill(cache, [slot], [self.ids[:_CUT]], start=0)
        before = plain.bytes_by_device(slot)
        for at in range(_CUT, TOKENS):
            passes.decode_step(cache, [slot], [self.ids[at]], [at])
        for device, size in plain.bytes_by_device(slot).items():
            grown = max(0, size - before.get(device, 0)) // (TOKENS - _CUT)
            state = max(0, size - grown * TOKENS)
            each = grown or max(1, -(-state // self._model.model_max_context))
            passes.kv_bytes_by_device[device] = each
            passes.state_tokens = max(passes.state_tokens, -(-state // each))

    # ------------------------------------------------------------- inside

    def _plain(self, count: int) -> Tensor:
        """The logits [count, vocabulary] of a plain pass over the first `count` tokens."""
        model = self._model
        tokens = torch.tensor([self.ids[:count]], device=model.device)
        logits: Tensor = model.model(**plain.whole(model.model, tokens)).logits
        return logits[0].to(model.device)

    def _compare(self, logits: Tensor, position: int) -> None:
        """Compare logits [vocabulary] with the logits of the plain pass at a position, in standard deviations of the
        latter.

        Raises:
            Disagreement.
        """
        true = self.truth[position]
        error = ((logits - true).float().abs().max() / true.float().std().clamp_min(1e-6)).item()
        if not error <= self._tolerance:
            raise Disagreement(f"the relative error of the logits is {error:.3g}")

    @property
    def _tolerance(self) -> float:
        held = self._model.held
        if self._model.rounds_rows:
            return _INT8_TOLERANCE
        if held.scheme in (Scheme.NF4, Scheme.AS_STORED):
            return _QUANTIZED_TOLERANCE
        return _TOLERANCE[self._model.dtype]

    def _batch(self) -> BytesByDevice:
        model, ids, short = self._model, self.ids, _CUT - 3
        cache = model.cache()
        slots: list[CacheSlot] = [cache.open(64), cache.open(64)]
        model.prefill(cache, slots, [ids[:_CUT], ids[:short]], start=0)
        model.decode_step(cache, slots, [ids[_CUT], ids[short]], [_CUT, short])
        cache.grow(slots[0], 96)
        slots.reverse()
        tokens, positions = [ids[short + 1], ids[_CUT + 1]], [short + 1, _CUT + 1]
        stepped = model.decode_step(cache, slots, tokens, positions)[1]
        self._compare(stepped, _CUT + 1)
        return cache.bytes_by_device

    def _turns(self, passes: PlainPasses) -> None:
        """Two rows take turns: one with the prompt, and one whose prompt is a single token."""
        ids, cache = self.ids, passes.cache()
        long, short = cache.open(TOKENS), cache.open(TOKENS)
        passes.prefill(cache, [long], [ids[:_CUT]], start=0)
        passes.prefill(cache, [short], [ids[:1]], start=0)
        passes.decode_step(cache, [long], [ids[_CUT]], [_CUT])
        stepped = passes.decode_step(cache, [short], [ids[1]], [1])[0]
        self._compare(stepped, 1)
        stepped = passes.decode_step(cache, [long], [ids[_CUT + 1]], [_CUT + 1])[0]
        self._compare(stepped, _CUT + 1)

    def _in_parts(self, passes: PlainPasses) -> None:
        ids, cache = self.ids, passes.cache()
        slot = cache.open(TOKENS)
        passes.prefill(cache, [slot], [ids[:_PART]], start=0)
        read = passes.prefill(cache, [slot], [ids[_PART:_CUT]], start=_PART)[0]
        self._compare(read, _CUT - 1)
        stepped = passes.decode_step(cache, [slot], [ids[_CUT]], [_CUT])[0]
        self._compare(stepped, _CUT)


def plain_passes(model: CheckedModel, agreement: Agreement) -> PlainPasses:
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
