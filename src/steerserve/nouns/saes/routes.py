"""/api/saes: previewing, downloading, registering and removing SAEs of the hub and of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException
from msgspec import UNSET, structs
from pydantic import AliasChoices, Field, SecretStr
from starlette.responses import Response

from steerserve.api.answers import Answer
from steerserve.api.envelope import RequestBody, success
from steerserve.control.metrics import note_object
from steerserve.control.saes.downloads import SaeDownloads
from steerserve.control.saes.plan import SaeRequest
from steerserve.control.saes.previews import SaePreview, SaeQuery, UnitHeader, preview_saes
from steerserve.control.saes.records import REPOSITORY, claims_of
from steerserve.control.saes.sae_lens import resolve_sae_lens
from steerserve.errors import Refusal
from steerserve.nouns.attachments.routes import Status
from steerserve.nouns.saes.form import (
    CancelledSae,
    DeletedSae,
    OfferedSae,
    OfferedSaes,
    OtherFile,
    RegisteredSae,
    RegisteredStatus,
    SaeDetails,
    SaeList,
    SaeRecord,
    SaeUnit,
    StoredHeader,
)
from steerserve.nouns.saes.owner import SaeRow, Saes
from steerserve.rules.field_faults import refuse_value
from steerserve.rules.saes.names import width_label
from steerserve.rules.saes.units import Unit
from steerserve.rules.units import MIB

LIMIT_MAXIMUM = 20_000
"""The largest `limit` of a preview: the most files that a repository can have."""

OTHER_FILES = 200
"""The most files outside of SAEs that an answer names. The answer always has their total number."""

SOURCES = ("repository_id", "sae_lens", "local_path")
"""The fields that say where an SAE is."""

_MESSAGES = {
    "downloading": "the download has begun",
    "already_downloading": "the download is running",
    "cached": "the SAE is on this machine already",
    "attached": "the SAE is attached already",
}
_LOOKING = "the hub is being asked; the record says how the download goes on"


class SaeHubBody(RequestBody):
    """A place in a repository of the model hub. The token is sent to the hub and dropped."""

    revision: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    file_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    hub_token: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("hub_token", "hf_token", "token")
    )

    @property
    def token(self) -> str | None:
        return self.hub_token.get_secret_value() or None if self.hub_token else None


class SaePreviewBody(SaeHubBody):
    """A repository to preview. The other fields choose among its SAEs."""

    repository_id: Annotated[str, Field(min_length=1, max_length=255)]
    layer: Annotated[int, Field(ge=0)] | None = None
    width: Annotated[str, Field(min_length=1, max_length=20)] | None = None
    site: Annotated[str, Field(min_length=1, max_length=50)] | None = None
    query: Annotated[str, Field(max_length=200)] | None = None
    limit: Annotated[int, Field(ge=1, le=LIMIT_MAXIMUM)] | None = None
    offset: Annotated[int, Field(ge=0)] = 0


class NewSae(SaeHubBody):
    """An SAE to register: the SAE at `file_path` of the repository `repository_id`, or all SAEs of the repository where
    `file_path` is left out, or the SAE that `sae_lens` names as SAELens does, or the folder or file `local_path` of
    this machine, which stays in its place."""

    repository_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    sae_lens: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    local_path: Annotated[str, Field(min_length=1, max_length=500)] | None = None


def record(row: SaeRow, downloads: SaeDownloads) -> SaeRecord:
    """The record of an SAE; `reason` says why the SAE cannot be attached as it is."""
    progress = downloads.progress(row.id)
    claims = claims_of(row)
    is_loadable = row.d_in is not None and row.status in ("cached", "attached")
    reason = None if is_loadable else row.error_message or f"it is {row.status}"
    if row.format == REPOSITORY and row.status == "cached":
        reason = "a repository with several SAEs: attach one of its units"
    l0 = row.average_l0
    return SaeRecord(
        id=row.id,
        other_ids=row.other_ids,
        repository_id=row.repository_id,
        revision=row.revision,
        file_path=row.file_path,
        local_path=row.local_path,
        content_digest=row.content_digest,
        name=row.name,
        format=row.format,
        architecture=row.architecture,
        d_in=row.d_in,
        d_sae=row.d_sae,
        dtype=row.dtype,
        hook_name=row.hook_name,
        site=row.site,
        normalisation=claims.normalisation if claims else None,
        trained_on=row.trained_on,
        trained_layer=row.trained_layer,
        width=width_label(row.d_sae) if row.d_sae else None,
        average_l0=int(l0) if l0 is not None and l0.is_integer() else l0,
        file_size_bytes=row.file_size_bytes,
        status=row.status,
        download_progress=int(progress.percent) if progress else None,
        download=progress,
        error_message=row.error_message,
        error_code=row.error_code if row.status == "error" else None,
        same_request=downloads.same_request(row),
        is_loadable=is_loadable,
        reason=reason,
        needs=claims.needs if claims else (),
        warnings=claims.warnings if claims else (),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


def router(saes: Saes, downloads: SaeDownloads, attached: Status) -> APIRouter:
    routes = APIRouter(prefix="/api/saes", tags=["saes"])

    @routes.get("", response_model=Answer[SaeList])
    async def list_saes() -> Response:
        rows, attachment = await saes.list(), await attached.first()

        def answer() -> Response:
            records = [record(row, downloads) for row in rows]
            return success(SaeList(records, len(records), attachment))

        return await asyncio.to_thread(answer)

    @routes.post("/preview", response_model=Answer[OfferedSaes])
    async def preview_repository(body: SaePreviewBody) -> Response:
        chosen = body.model_dump(exclude={"repository_id", "hub_token"})
        query = SaeQuery(repo_id=body.repository_id, token=body.token, **chosen)
        shown = await preview_saes(downloads, query)
        return success(preview(shown, body.limit, body.offset))

    @routes.post("/download", response_model=Answer[RegisteredSae], status_code=202)
    async def download_sae(body: NewSae) -> Response:
        _check_source(body)
        named = None if body.sae_lens is None else await resolve_sae_lens(body.sae_lens)
        if body.local_path is not None:
            row, was_there = await saes.add(body.local_path)
            status: RegisteredStatus = row.status
            message = "already registered" if was_there else "registered"
        else:
            wanted = SaeRequest(
                named.repository_id if named else str(body.repository_id),
                body.revision,
                named.file_path if named else body.file_path,
                body.token,
            )
            row, status = await downloads.begin_download(wanted)
            message = _LOOKING if downloads.is_looking(row.id) else _MESSAGES[status]
        note_object(sae_id=row.id)
        return success(RegisteredSae(row.id, status, message, named or UNSET), 202)

    @routes.api_route("/preview", methods=["GET", "DELETE"], include_in_schema=False)
    @routes.api_route("/download", methods=["GET", "DELETE"], include_in_schema=False)
    async def is_posted() -> Response:
        # without this route, these words would be read as ids of SAEs
        raise HTTPException(405)

    @routes.get("/{sae_id}", response_model=Answer[SaeDetails])
    async def get_sae(sae_id: str) -> Response:
        row, *units = await downloads.with_units(sae_id)
        return success(await asyncio.to_thread(_details, row, units, downloads))

    @routes.post("/{sae_id}/cancel", response_model=Answer[CancelledSae])
    async def cancel_download(sae_id: str) -> Response:
        row, is_cancelled = await downloads.cancel(sae_id)
        if is_cancelled:
            return success(CancelledSae(row.id, "cancelled", row.error_message))
        why = f"nothing to cancel: it is {row.status}"
        return success(CancelledSae(row.id, row.status, why))

    @routes.delete("/{sae_id}", response_model=Answer[DeletedSae])
    async def delete_sae(sae_id: str) -> Response:
        row, freed = await saes.remove(sae_id)
        freed_mb = -(-freed // MIB)
        return success(DeletedSae("deleted", row.id, freed_mb))

    return routes


def _check_source(body: NewSae) -> None:
    """Check that a body names one source, and has no field that the source does not have.

    Raises:
        Refusal: VALIDATION_ERROR naming the fields.
    """
    sources = [name for name in SOURCES if getattr(body, name) is not None]
    if len(sources) != 1:
        why = "one of repository_id, sae_lens and local_path is required"
        if sources:
            why = f"{' and '.join(sources)} cannot be sent together; send one"
        param = sources[0] if sources else SOURCES[0]
        raise refuse_value(["body", param], why, param=param)
    given = {"revision": body.revision, "file_path": body.file_path, "hub_token": body.token}
    refused, why = {
        "local_path": (tuple(given), "only the hub has it, so it cannot be sent with local_path"),
        "sae_lens": (("file_path",), "sae_lens names the path, so it cannot be sent with sae_lens"),
    }.get(sources[0], ((), ""))
    names = [name for name in refused if given[name] is not None]
    if names:
        errors = [{"loc": ["body", name], "msg": why} for name in names]
        message = f"{', '.join(names)}: {why}"
        raise Refusal("VALIDATION_ERROR", message, param=names[0], errors=errors)


def preview(shown: SaePreview, limit: int | None, offset: int) -> OfferedSaes:
    """The answer of a preview: the SAEs that a repository offers."""
    listed = shown.repository
    return OfferedSaes(
        repository_id=listed.repo_id,
        revision=listed.sha,
        model_id=shown.model_name,
        files=[_unit(unit, shown.header) for unit in shown.page],
        total_files=len(listed.files),
        total_units=shown.total_units,
        matched=shown.matched,
        total_bytes=sum(file.size or 0 for file in listed.files),
        other_files=[OtherFile(file.path, file.size) for file in shown.others[:OTHER_FILES]],
        total_other_files=len(shown.others),
        limit=limit,
        offset=offset,
    )


def _unit(unit: Unit, header: UnitHeader | None) -> OfferedSae:
    hints = unit.hints
    offered = OfferedSae(
        path=unit.path,
        size_bytes=unit.size_bytes,
        file_count=len(unit.files),
        layer=hints.layer,
        width=hints.width,
        # the description names only numbers, but a size class such as `small` is sent too
        l0=hints.l0,  # type: ignore[arg-type]
        site=hints.site,
        format=unit.format,
        is_loadable=unit.reason is None,
        reason=unit.reason,
    )
    if header is None:
        return offered
    tensors, width = header.tensors, header.width
    return structs.replace(
        offered,
        d_in=width.d_in if width else None,
        d_sae=width.d_sae if width else None,
        dtype=width.dtype if width else None,
        tensors=None
        if tensors is None
        else [StoredHeader(t.name, t.dtype, t.shape) for t in tensors],
        note=header.note,
    )


def _details(row: SaeRow, units: Sequence[SaeRow], downloads: SaeDownloads) -> SaeDetails:
    """The record of an SAE. A repository that is registered as a whole has its SAEs too."""
    details = SaeDetails(**structs.asdict(record(row, downloads)))
    if row.format != REPOSITORY:
        return details
    return structs.replace(details, units=[_registered_unit(unit) for unit in units])


def _registered_unit(row: SaeRow) -> SaeUnit:
    width = width_label(row.d_sae) if row.d_sae else None
    return SaeUnit(row.id, row.file_path, row.trained_layer, width, row.status)
