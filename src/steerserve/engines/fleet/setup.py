"""What every replica of a fleet holds beside its model: SAEs, steering, monitoring, sensing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steerserve import messages as m
from steerserve.errors import Refusal
from steerserve.messages.engine import Engine

Values = dict[str, dict[int, float]]


@dataclass(frozen=True, slots=True)
class SharedSae:
    """An attached SAE: the arguments of `Engine.attach`, and the facts that the first replica answered."""

    key: str
    source: m.SaeSource
    layer: int
    dtype: str | None
    check: bool
    facts: m.Attached


@dataclass(frozen=True, slots=True)
class Setup:
    """The arguments with which the engines were last told. None stands for nothing.

    Attributes:
        saes: the attached SAEs by their keys, in the order in which they were attached.
        steering: epoch, switch and values of the live steering.
        monitoring: key, features, number of largest features, number of kept contexts.
        counted: the key of the SAE whose statistics are counted; they stay when monitoring ends.
    """

    saes: Mapping[str, SharedSae] = field(default_factory=dict)
    steering: tuple[int, bool, Values] | None = None
    monitoring: tuple[str, list[int] | None, int, int] | None = None
    cluster: m.ArmedCluster | None = None
    circuits: tuple[m.ArmedCircuit, ...] = ()
    counted: str | None = None

    def attached(self, sae: SharedSae) -> Setup:
        return replace(self, saes={**self.saes, sae.key: sae})

    def detached(self, key: str) -> Setup:
        """Without an SAE, and without all that an engine drops together with it."""
        steering = self.steering
        if steering is not None:
            epoch, enabled, values = steering
            steering = epoch, enabled, {k: v for k, v in values.items() if k != key}
        is_watched = self.monitoring is not None and self.monitoring[0] == key
        is_sensed = self.cluster is not None and self.cluster.key == key
        return Setup(
            {k: sae for k, sae in self.saes.items() if k != key},
            steering,
            None if is_watched else self.monitoring,
            None if is_sensed else self.cluster,
            tuple(c for c in self.circuits if all(one.key != key for one in c.features)),
            None if self.counted == key else self.counted,
        )


def is_same_sae(facts: m.Attached, other: m.Attached) -> bool:
    """Whether two engines have attached the same SAE."""
    return (facts.d_in, facts.d_sae, facts.site, facts.dtype) == (
        other.d_in,
        other.d_sae,
        other.site,
        other.dtype,
    )


async def bring(engine: Engine, have: Setup, want: Setup) -> None:
    """Tell an engine that holds `have` what it lacks of `want`.

    Raises:
        Refusal: what the engine refuses; SAE_INCOMPATIBLE where the files of an SAE hold another SAE on its node.
    """
    for key, sae in have.saes.items():
        if key not in want.saes or want.saes[key] is not sae:
            await engine.detach(key)
            have = have.detached(key)
    for key, sae in want.saes.items():
        if key not in have.saes:
            facts = await engine.attach(key, sae.source, sae.layer, sae.dtype, sae.check)
            if not is_same_sae(facts, sae.facts):
                raise Refusal("SAE_INCOMPATIBLE", f"the files of {key} hold another SAE there")
    if want.steering != have.steering:
        await engine.steer(*(want.steering or (0, False, {})))
    if want.monitoring != have.monitoring:
        await engine.monitor(*(want.monitoring or (None,)))
    if want.cluster != have.cluster:
        await engine.sense_cluster(want.cluster)
    if want.circuits != have.circuits:
        await engine.sense_circuits(list(want.circuits))
