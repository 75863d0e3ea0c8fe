"""What the routes of SAEs and of attached SAEs answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from steerserve.rules.form import Form
from steerserve.rules.models.downloads import FetchProgress, SameRequest
from steerserve.rules.models.status import SaeStatus

RegisteredStatus = Literal["downloading", "already_downloading", "cached", "attached", "error"]
CHECK_TEXT = "a short story of the service"
"""What the engine reads to check an SAE (`worker/sae/selfcheck.py`), as answers name it."""


class SaeRecord(Form, frozen=True, kw_only=True):
    """A registered SAE. `other_ids` name it wherever its `id` does: they were given before it was known which SAE a
    request is about. `content_digest` is the SHA-256 of an SAE of this machine. `d_in` is the width of the activations
    that it reads, `d_sae` the number of its features, and `width` the same as a short text, such as `16k`. Facts that
    are only known once the files are read are null before. `download_progress` is in percent; it and `download` are
    null while no download runs. `error_code` is the code of the refusal that ended the download. `same_request` says
    what the same request would do after that: go on with the bytes that are kept (`resume`), begin anew (`retry`), or
    null where it would be refused again. `reason` says why the SAE cannot be attached as it is, where `is_loadable` is
    false."""

    id: str
    other_ids: Sequence[str] = ()
    repository_id: str | None
    revision: str | None
    file_path: str | None
    local_path: str | None
    content_digest: str | None
    name: str
    format: str
    architecture: str
    d_in: int | None
    d_sae: int | None
    dtype: str
    hook_name: str | None
    site: str | None
    normalisation: str | None
    trained_on: str | None
    trained_layer: int | None
    width: str | None
    average_l0: float | None
    file_size_bytes: int | None
    status: SaeStatus
    download_progress: int | None
    download: FetchProgress | None
    error_message: str | None
    error_code: str | None
    same_request: SameRequest | None
    is_loadable: bool
    reason: str | None
    needs: Sequence[str]
    warnings: Sequence[str]
    created_at: datetime
    updated_at: datetime


class SaeUnit(Form, frozen=True):
    """One SAE of a repository that is registered as a whole."""

    sae_id: str
    path: str | None
    layer: int | None
    width: str | None
    status: SaeStatus


class SaeDetails(SaeRecord, frozen=True, kw_only=True):
    """A registered SAE. The record of a whole repository has its `units`, each of which can be attached."""

    units: list[SaeUnit] | UnsetType = UNSET


class SaeCheck(Form, frozen=True, kw_only=True):
    """What an SAE did on a short text at the place where it is attached: which text, and how many of its tokens count;
    how many features fired at any of them; L0, which is the number of features that fire per token; the fraction of
    the variance that its reconstruction leaves unexplained (FVU); the median norm of the activations it reads; the
    smallest and the largest norm of its decoder rows. L0 is left out for an SAE that always chooses k features, and a
    figure that is not finite is left out; without a check there is none."""

    text: str | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    features_fired: int | UnsetType = UNSET
    l0: float | UnsetType = UNSET
    fvu: float | UnsetType = UNSET
    residual_norm: float | UnsetType = UNSET
    decoder_norm_min: float | UnsetType = UNSET
    decoder_norm_max: float | UnsetType = UNSET

    @classmethod
    def from_figures(cls, figures: Mapping[str, float]) -> SaeCheck:
        """The check with these figures of the engine."""
        if not figures:
            return cls()
        counts = {name: int(figures[name]) for name in ("tokens", "features_fired")}
        known: dict[str, Any] = {**figures, **counts}
        return cls(text=CHECK_TEXT, **known)


class CorpusCheck(Form, frozen=True, kw_only=True):
    """How the features of an SAE fired over the largest corpus that was read of it as it is attached. `l0` is None for
    an SAE that always chooses k features."""

    corpus_id: str
    name: str
    tokens: int
    features_fired: int
    never_fired: int
    l0: float | None


class ScaleOverrides(Form, frozen=True, kw_only=True):
    """The facts stated at the attach that change the added vector."""

    normalisation: str | UnsetType = UNSET
    norm_factor: float | UnsetType = UNSET
    is_centred: bool | UnsetType = UNSET


class AttachedPlace(Form, frozen=True, kw_only=True):
    """Where and how an SAE is attached. `is_calibrated` says whether its scale was measured here. `k` is how many
    features it chooses at each token, None where their number is free. `overrides` are the facts stated at the attach
    that change the added vector. These fields stand last in every answer."""

    layer_module_path: str
    site: str
    dtype: str
    is_calibrated: bool
    k: int | None
    overrides: ScaleOverrides


class AttachmentEntry(AttachedPlace, frozen=True):
    """An attached SAE, with the figures of its self-check. Its memory is in MiB. `steering_apply_count` counts the
    passes in which it was steered. `has_corpus` says whether a corpus was read of it as it is attached, so that its
    features can be ranked by rarity and share; it is None where the database cannot be used. `over_corpus` says what
    that corpus shows, None without one."""

    sae_id: str
    layer: int
    memory_usage_mb: int
    steering_enabled: bool
    monitoring_enabled: bool
    steering_apply_count: int
    warnings: Sequence[str]
    check: SaeCheck
    has_corpus: bool | None
    over_corpus: CorpusCheck | None


class FirstAttachment(AttachedPlace, frozen=True):
    """The SAE that was attached first."""

    is_attached: Literal[True]
    sae_id: str
    layer: int
    memory_usage_mb: int
    steering_enabled: bool
    monitoring_enabled: bool
    steering_apply_count: int
    warnings: Sequence[str]
    check: SaeCheck
    has_corpus: bool | None
    over_corpus: CorpusCheck | None


class NoAttachment(Form, frozen=True, kw_only=True):
    """No SAE is attached."""

    is_attached: Literal[False]
    sae_id: None
    layer: None
    memory_usage_mb: None
    steering_enabled: Literal[False]
    monitoring_enabled: Literal[False]
    steering_apply_count: Literal[0]


class SaeList(Form, frozen=True):
    """All registered SAEs, and the SAE that was attached first."""

    saes: list[SaeRecord]
    total: int
    attachment: FirstAttachment | NoAttachment


class OtherFile(Form, frozen=True):
    """A file of a repository that belongs to no SAE."""

    path: str
    size_bytes: int | None


class StoredHeader(Form, frozen=True):
    """A tensor of a file, as its header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class OfferedSae(Form, frozen=True, kw_only=True):
    """One SAE of a repository, with what its path tells. The fields from `d_in` on are there for the SAE that
    `file_path` names; they come from the header of its file. `note` says why they are not known."""

    path: str
    size_bytes: int | None
    file_count: int
    layer: int | None
    width: str | None
    l0: float | None
    site: str | None
    format: str
    is_loadable: bool
    reason: str | None
    d_in: int | UnsetType | None = UNSET
    d_sae: int | UnsetType | None = UNSET
    dtype: str | UnsetType | None = UNSET
    tensors: list[StoredHeader] | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class OfferedSaes(Form, frozen=True, kw_only=True):
    """The SAEs that a repository of the hub offers. `model_id` is the model that the repository names. `matched` counts
    the SAEs that fit the request, and `files` has the page of them that `limit` and `offset` ask for. `other_files` has
    the first files that belong to no SAE, and `total_other_files` counts them all."""

    repository_id: str
    revision: str
    model_id: str | None
    files: list[OfferedSae]
    total_files: int
    total_units: int
    matched: int
    total_bytes: int
    other_files: list[OtherFile]
    total_other_files: int
    limit: int | None
    offset: int


class SaeLensSae(Form, frozen=True):
    """What a name of SAELens means. `overrides` belong into the attach, because the files of the SAE lack them."""

    name: str
    repository_id: str
    file_path: str
    model: str
    neuronpedia_id: str | None
    overrides: Mapping[str, str | float | bool]
    version: str


class RegisteredSae(Form, frozen=True):
    """The SAE that was registered, or was registered before. `sae_lens` is there if the request named the SAE so."""

    sae_id: str
    status: RegisteredStatus
    message: str
    sae_lens: SaeLensSae | UnsetType = UNSET


class CancelledSae(Form, frozen=True):
    """What became of a download."""

    sae_id: str
    status: Literal["cancelled"] | SaeStatus
    message: str | None


class DeletedSae(Form, frozen=True):
    """The SAE that was deleted, and the MiB that were freed on disk."""

    status: Literal["deleted"]
    sae_id: str
    freed_disk_mb: int


class LostAttachment(Form, frozen=True):
    """An SAE that was attached when an engine ended by itself. The next load of its model attaches it again."""

    model_id: int
    sae_id: str
    layer: int


class AttachmentList(Form, frozen=True, kw_only=True):
    """All attached SAEs."""

    is_attached: bool
    count: int
    entries: list[AttachmentEntry]
    # the memory of all attached SAEs, and the memory from which on `vram_warning` is true, in MiB
    total_memory_usage_mb: int | None
    vram_envelope_mb: int
    vram_warning: bool
    to_restore: list[LostAttachment]


class NewAttachment(AttachedPlace, frozen=True):
    """The SAE that was attached. Its memory is in MiB."""

    status: Literal["attached"]
    sae_id: str
    layer: int
    memory_usage_mb: int
    warnings: Sequence[str]
    check: SaeCheck


class SetMember(AttachedPlace, frozen=True):
    """One SAE of a set that was attached."""

    sae_id: str
    layer: int
    status: Literal["attached", "already_attached"]
    memory_usage_mb: int
    warnings: Sequence[str]
    check: SaeCheck


class AttachedSet(Form, frozen=True, kw_only=True):
    """The SAEs that were attached together. `attached_count` counts all attached SAEs."""

    status: Literal["attached"]
    entries: list[SetMember]
    attached_count: int
    total_memory_usage_mb: int | None
    vram_envelope_mb: int
    vram_warning: bool


class Compatibility(Form, frozen=True):
    """Whether an SAE can be attached at a layer of the loaded model."""

    compatible: bool
    errors: Sequence[str]
    warnings: Sequence[str]


class DetachedSae(Form, frozen=True):
    """The SAE that was detached, and the MiB that were freed."""

    status: Literal["detached"]
    sae_id: str
    memory_freed_mb: int
