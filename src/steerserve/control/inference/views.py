"""What the routes of tokens and comparisons answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.sensing.feature_views import PromotedFeatures
from steerserve.control.steering.views import Values
from steerserve.rules.form import Form
from steerserve.rules.jobs import JobFacts


class TokenizedText(Form, frozen=True):
    """A text and its tokens by the tokenizer of `model`. `pieces` has the text of each token, and `offsets` the
    character of `text` at which each begins."""

    model: str
    text: str
    count: int
    ids: list[int]
    pieces: list[str]
    offsets: list[int]


FinishReason = Literal["stop", "length"]


class ReadFeature(Form, frozen=True):
    """The activation of one feature; a feature without a label has no field `label`."""

    index: int
    value: float
    label: str | UnsetType = UNSET


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
    """How a side of a comparison is steered: its intensity, its values by `<sae_id>@<layer>`, and the digest of the
    steering, which is null where nothing is added."""

    intensity: float
    steering: dict[str, Values]
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


JobResult = PromotedFeatures | None


class JobRecord(JobFacts, frozen=True, kw_only=True):
    """A job. `result` is null until the job is done; its form depends on `kind`."""

    result: JobResult


class JobAnswer(Form, frozen=True):
    """One job."""

    job: JobRecord


class JobList(Form, frozen=True):
    """The jobs without their results, the newest first."""

    jobs: list[JobFacts]
