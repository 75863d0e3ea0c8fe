"""Comparisons: one prompt is completed at several intensities of steering, as one request in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from steerserve.control.interventions.serving import Serving
from steerserve.control.observing.features import Features
from steerserve.control.requests.generate import Activated, Generation, Piece, Started
from steerserve.control.requests.served import ServedModel, ServedModels
from steerserve.control.residency.conductor import Conductor
from steerserve.control.residency.resident import Attachment
from steerserve.engine.wire.messages import Reading
from steerserve.errors import Refusal
from steerserve.rules import architecture
from steerserve.rules.compare import Overlay
from steerserve.rules.intent import GenerateIntent


@dataclass(slots=True)
class Side:
    """One completion. `steering` has its values by attachment (`sae_id@layer`), and `state` says which steering that is
    (`rules/steering_state.py`). `readings` has the activations, and is None where the request does not ask for
    them."""

    intensity: float
    steering: Overlay
    state: str | None = None
    text: str = ""
    tokens: int = 0
    finish: str | None = None
    readings: list[Reading] | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison, with its sides in the order of the request's intensities. `tapped` is the SAE whose
    activations the readings have, and `labels` are the labels of its features."""

    model: str
    fingerprint: str
    prompt_tokens: int
    tapped: Attachment | None
    sides: list[Side] = field(default_factory=list)
    labels: Mapping[int, str] = field(default_factory=dict)


class Compare:
    """Runs comparisons on the resident model; it never loads one."""

    def __init__(
        self,
        generation: Generation,
        models: ServedModels,
        conductor: Conductor,
        serving: Serving,
        features: Features,
    ) -> None:
        self._generation = generation
        self._models = models
        self._conductor = conductor
        self._serving = serving
        self._features = features

    async def model(self) -> ServedModel:
        """The model that comparisons run on.

        Raises:
            Refusal: MODEL_NOT_LOADED, SAE_NOT_ATTACHED; INVALID_PARAMETER for a model that can only embed.
        """
        row = self._conductor.loaded().row
        self._conductor.first_attachment()
        architecture.check_generates(row.name, row.architecture, row.engine)
        return await self._models.of(row)

    async def run(self, intent: GenerateIntent, model: ServedModel) -> Compared:
        """Complete the prompt once at each intensity of the intent's sweep.

        Raises:
            Refusal: every refusal of an inference request; SAE_NOT_ATTACHED, INVALID_FEATURE_INDEX, PROFILE_NOT_FOUND,
                PROFILE_INCOMPATIBLE, VALIDATION_ERROR; STEERING_CHANGED when an operator changed the steering while the
                comparison ran. The operator's change stays, and the comparison has no result.
        """
        assert intent.sweep is not None
        async with self._generation.open(intent, model) as run:
            admitted = run.admitted
            tapped = admitted.tapped
            labels = await self._features.labels(tapped.sae_id) if tapped else {}
            sides = [
                Side(*values)
                for values in zip(
                    intent.sweep.intensities, admitted.overlays, admitted.states, strict=True
                )
            ]
            prompt_tokens = 0
            async for event in run.events:
                match event:
                    case Started():
                        prompt_tokens = event.prompt_tokens[0]
                    case Piece():
                        side = sides[event.choice]
                        side.text += event.text
                        side.tokens, side.finish = event.tokens, event.finish
                    case Activated():
                        sides[event.choice].readings = event.readings
            if self._serving.live.epoch != admitted.epoch:
                raise Refusal(
                    "STEERING_CHANGED",
                    "the steering was changed while the comparison ran; ask again",
                )
        return Compared(run.model_name, run.fingerprint, prompt_tokens, tapped, sides, labels)
