"""What the routes of tokens and comparisons answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.steering.views import Values
from steerserve.nouns.captures.form import CapturedTexts
from steerserve.nouns.contrasts.form import Contrast
from steerserve.nouns.corpora.form import CorpusRecord
from steerserve.nouns.directions.rules import ProbeRecord, VectorRecord
from steerserve.nouns.effects.form import Effects
from steerserve.nouns.lens.rules import LensRecord
from steerserve.nouns.patches.rules import Patches
from steerserve.nouns.promotions.form import PromotedFeatures
from steerserve.nouns.suggestions.form import SuggestedLabels
from steerserve.rules.form import Form
from steerserve.rules.jobs import JobFacts


class TokenizedText(Form, frozen=True):
    """A text and its tokens by the tokenizer of `model`. `pieces` has the text of each token, and `offsets` the
    character of `text` at which each begins. `bos_token_id` and `eos_token_id` are the tokens that the tokenizer names
    as the beginning and the end of a text, null where it names none."""

    model: str
    text: str
    count: int
    ids: list[int]
    pieces: list[str]
    offsets: list[int]
    bos_token_id: int | None
    eos_token_id: int | None


FinishReason = Literal["stop", "length"]


class ReadFeature(Form, frozen=True):
    """The activation of one feature; a feature without a label has no field `label`. `weight` is the number by which
    features are ranked, where the request asks for another rank than that by value."""

    index: int
    value: float
    label: str | UnsetType = UNSET
    weight: float | UnsetType = UNSET


class ReadPosition(Form, frozen=True, kw_only=True):
    """The activations at one token. `position` counts from the beginning of the prompt."""

    position: int
    token_id: int
    features: list[ReadFeature]


class SideActivations(Form, frozen=True, kw_only=True):
    """The activations that a side of a comparison has, and the SAE that they were read from."""

    sae_id: str
    layer: int
    positions: list[ReadPosition]


class SteeredSide(Form, frozen=True, kw_only=True):
    """How a side of a comparison is steered: its intensity, its values by `<sae_id>@<layer>`, its edits, and the digest
    of the steering, which is null where nothing is added. `edits` are as they were sent, but without the numbers of
    directions; the intensity is their strength, and `steering` has the values that they add to features too."""

    intensity: float
    steering: dict[str, Values]
    edits: list[dict[str, object]]
    steering_state: str | None


class ComparedSide(SteeredSide, frozen=True, kw_only=True):
    """One completion of a comparison. `sae_activations` is null where the request does not ask for activations."""

    text: str
    finish_reason: FinishReason | None
    completion_tokens: int
    sae_activations: SideActivations | None


class Comparison(Form, frozen=True, kw_only=True):
    """The completions of a prompt, in the order of the intensities of the request."""

    model: str
    system_fingerprint: str
    prompt_tokens: int
    sides: list[ComparedSide]


JobResult = (
    Contrast
    | Effects
    | PromotedFeatures
    | VectorRecord
    | ProbeRecord
    | CorpusRecord
    | CapturedTexts
    | LensRecord
    | SuggestedLabels
    | Patches
    | None
)


class JobRecord(JobFacts, frozen=True, kw_only=True):
    """A job. `result` is null until the job is done; its form depends on `kind`."""

    result: JobResult


class JobAnswer(Form, frozen=True):
    """One job."""

    job: JobRecord


class JobList(Form, frozen=True):
    """The jobs without their results, the newest first."""

    jobs: list[JobFacts]
