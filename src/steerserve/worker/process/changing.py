"""Brings a language model from one state to another: attached SAEs, steering, monitoring, sensing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from steerserve.errors import Refusal
from steerserve.messages import Attached, Difference, State
from steerserve.rules.steering.live import Live
from steerserve.worker import memory
from steerserve.worker.hooks import attach
from steerserve.worker.live.target import target_of
from steerserve.worker.process.loading import LoadedModel


def change(loaded: LoadedModel, state: State, difference: Difference) -> dict[str, Attached]:
    """Bring the model to `state`, and return the facts of the SAEs that were attached for that, by their keys. All that
    may be refused is done first, and SAEs that were attached before a refusal are detached again.

    Raises:
        Refusal: SAE_ALREADY_ATTACHED where another SAE has the key of a new one; as `attach.attach`, `target_of` and
            `Sensing.arm`. Nothing has changed then.
    """
    saes, facts = loaded.saes, dict[str, Attached]()
    with ExitStack() as undo:
        for placed in difference.coming:
            if placed.key in saes.applied:
                why = f"another SAE is attached as {placed.key!r}"
                raise Refusal("SAE_ALREADY_ATTACHED", why)
            facts[placed.key] = attach.attach(placed, loaded.model, saes, loaded.room)
            undo.callback(_detach, loaded, [placed.key])
        wanted = state.monitored
        target = None
        if difference.is_monitored and wanted is not None:
            target = target_of(saes, wanted.key, wanted.features, wanted.top_k)
        if difference.is_sensed:
            loaded.sensing.arm(state.cluster, state.circuits, saes)
        if difference.is_steered:
            saes.prepare_edits(state.steering.edits)
        undo.pop_all()
    if difference.is_monitored:
        loaded.monitor.watch(target, wanted.contexts if wanted is not None else 0)
    _detach(loaded, difference.gone)
    if difference.is_steered:
        live = state.steering
        saes.set_live(
            Live(
                live.epoch,
                live.enabled,
                live.values,
                edits=live.edits,
                modifiers=live.modifiers,
            )
        )
    return facts


def _detach(loaded: LoadedModel, keys: Sequence[str]) -> None:
    """Take SAEs away with all that reads them, and give their memory back."""
    for key in keys:
        loaded.saes.detach(key)
    if keys:
        memory.give_back()
