"""What the routes of tokens and comparisons answer."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from steerserve.control.inference.capture_views import CapturedTexts
from steerserve.control.inference.effect_views import Effects
from steerserve.control.saes.example_views import FeatureExample
from steerserve.control.sensing.corpus_views import CorpusRecord
from steerserve.control.sensing.feature_views import PromotedFeatures, SuggestedLabels
from steerserve.control.steering.views import Values
from steerserve.rules.form import Form
from steerserve.rules.inference.lens import LensRecord
from steerserve.rules.inference.patches import Patches
from steerserve.rules.inference.runs import RunSummary
from steerserve.rules.jobs import JobFacts
from steerserve.rules.steering.records import ProbeRecord, VectorRecord


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


class ContrastedTexts(Form, frozen=True):
    """How many texts a contrast had, and how many of them were held out."""

    positives: int
    negatives: int
    held_out: int


class ContrastedFeature(Form, frozen=True, kw_only=True):
    """One feature of a contrast. `auc` is the probability that the feature's pooled activation is larger in a positive
    text than in a negative one, with its 95 % interval, which is null where a group has one text. The means and shares
    are those of the texts that are not held out; a share counts the texts in which the feature fires. `promotes` has
    the three tokens that the feature promotes most, and is null where they are not known. `example` is the strongest
    one in the newest corpus, where examples are asked for; null where there is none."""

    index: int
    label: str | None
    auc: float
    auc_low: float | None
    auc_high: float | None
    auc_held_out: float | None
    mean_positive: float
    mean_negative: float
    share_positive: float
    share_negative: float
    p_corrected: float
    promotes: list[str] | None
    example: FeatureExample | UnsetType | None = UNSET


class Contrast(Form, frozen=True, kw_only=True):
    """The features that tell the positive texts from the negative ones best, and how many features were compared."""

    sae_id: str
    layer: int
    texts: ContrastedTexts
    features: list[ContrastedFeature]
    compared: int


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


class RunList(Form, frozen=True, kw_only=True):
    """The newest recorded answers first, without their texts. `recording` says whether answers are recorded now."""

    runs: list[RunSummary]
    total: int
    stored_bytes: int
    recording: bool


class ImportedRuns(Form, frozen=True):
    """How many records an import has added, and how many were known before."""

    imported: int
    known: int


class DeletedRun(Form, frozen=True):
    """The recorded answer that was deleted."""

    request_id: str
