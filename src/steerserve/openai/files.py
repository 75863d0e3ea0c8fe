"""/v1/files: the files that batches read and write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from steerserve.control.inference.batches import UPLOADED, Batches, FileRow
from steerserve.control.metrics import note_object
from steerserve.errors import Refusal
from steerserve.openai import answers
from steerserve.rules import multipart
from steerserve.rules.field_faults import refuse_parameter
from steerserve.rules.inference.batches import seconds
from steerserve.rules.multipart import FormPart
from steerserve.rules.text import readable
from steerserve.rules.units import MIB
from steerserve.settings import Settings

NAME_MAXIMUM = 255
PAGE_MAXIMUM = 10_000
LASTS_LEAST, LASTS_MOST = 3600, 2_592_000
"""The seconds for which a file may be asked to last: an hour to 30 days."""
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)

Purpose = Literal["batch", "batch_output"]

_FORM: dict[str, object] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [UPLOADED]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LASTS_LEAST,
                            "maximum": LASTS_MOST,
                        },
                    },
                }
            }
        },
    }
}
_CONTENT: dict[int | str, dict[str, object]] = {
    200: {
        "description": "the lines of the file",
        "content": {"application/jsonl": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def router(batches: Batches, settings: Settings) -> APIRouter:
    routes = APIRouter(tags=["batches"])

    @routes.post(
        "/v1/files",
        response_model=None,
        responses=answers.answered(answers.FileObject),
        openapi_extra=_FORM,
    )
    async def upload_file(request: Request) -> dict[str, object]:
        """Store the input of a batch."""
        kind = request.headers.get("content-type", "")
        if not multipart.is_form(kind):
            raise refuse_parameter("Content-Type", "send a file as multipart/form-data")
        body = bytearray()
        async for part in request.stream():
            body += part  # joining all parts at the end would take too long for the event loop
        parts = await asyncio.to_thread(multipart.parts, kind, body)
        file, lasts = _sent(parts, settings.batch_file_mb)
        row = await batches.add_file(_name(file), file.content, lasts)
        note_object(file_id=row.id)
        return shown(row)

    @routes.get("/v1/files", response_model=None, responses=answers.answered(answers.FileList))
    async def list_files(
        limit: Annotated[int, Query(ge=1, le=PAGE_MAXIMUM)] = PAGE_MAXIMUM,
        after: str | None = None,
        order: Literal["asc", "desc"] = "desc",
        purpose: Purpose | None = None,
    ) -> dict[str, object]:
        """Stored files, the newest first. `after` is the id of the last file of the page before."""
        rows, has_more = await batches.files.page(
            limit, after, purpose, is_ascending=order == "asc"
        )
        return listed([shown(row) for row in rows], has_more=has_more)

    @routes.get(
        "/v1/files/{file_id}",
        response_model=None,
        responses=answers.answered(answers.FileObject),
    )
    async def get_file(file_id: str) -> dict[str, object]:
        """The facts of a file."""
        return shown(await batches.files.get(file_id))

    @routes.get("/v1/files/{file_id}/content", response_model=None, responses=_CONTENT)
    async def get_content(file_id: str) -> Response:
        """The content of a file. A file that a batch wrote has its lines in the order of the input."""
        _, content = await batches.content(file_id)
        return StreamingResponse(content, media_type="application/jsonl")

    @routes.delete(
        "/v1/files/{file_id}",
        response_model=None,
        responses=answers.answered(answers.DeletedFile),
    )
    async def delete_file(file_id: str) -> dict[str, object]:
        """Delete a file, and with a file that a batch wrote the answers in it."""
        await batches.remove_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    return routes


def shown(row: FileRow) -> dict[str, object]:
    """A file in the form of the Files API."""
    return {
        "id": row.id,
        "object": "file",
        "bytes": row.bytes,
        "created_at": seconds(row.created_at),
        "expires_at": None if row.expires_at is None else seconds(row.expires_at),
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
    }


def listed(data: list[dict[str, object]], *, has_more: bool) -> dict[str, object]:
    """A page of a list whose next page begins after its last id."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {
        "object": "list",
        "data": data,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }


def _sent(parts: Mapping[str, FormPart], most_mb: int) -> tuple[FormPart, int | None]:
    """The file of a form, and the seconds for which it shall last.

    Raises:
        Refusal: INVALID_PARAMETER, PAYLOAD_TOO_LARGE.
    """
    texts = {name: _text(name, part) for name, part in parts.items() if name != "file"}
    purpose = texts.pop("purpose", None)
    if purpose != UPLOADED:
        raise refuse_parameter("purpose", f"files are stored for the purpose {UPLOADED!r} only")
    anchor = texts.pop("expires_after[anchor]", "created_at")
    if anchor != "created_at":
        raise refuse_parameter("expires_after.anchor", "must be created_at")
    lasts = texts.pop("expires_after[seconds]", None)
    if lasts is not None and not (
        _WHOLE.fullmatch(lasts) and LASTS_LEAST <= int(lasts) <= LASTS_MOST
    ):
        why = f"must be a whole number from {LASTS_LEAST} to {LASTS_MOST}"
        raise refuse_parameter("expires_after.seconds", why)
    if texts:
        raise refuse_parameter(next(iter(texts)), "unknown field")
    file = parts.get("file")
    if file is None:
        raise refuse_parameter("file", "is required")
    if len(file.content) > most_mb * MIB:
        why = f"the file is larger than {most_mb} MiB"
        raise Refusal("PAYLOAD_TOO_LARGE", why, limit_mb=most_mb)
    return file, None if lasts is None else int(lasts)


def _text(name: str, part: FormPart) -> str:
    try:
        return part.text
    except UnicodeDecodeError:
        raise refuse_parameter(name, "the text is not UTF-8") from None


def _name(file: FormPart) -> str:
    """The name of a file without the folders before it."""
    name = re.split(r"[/\\]", file.filename or "")[-1]
    return readable(name)[:NAME_MAXIMUM] or "file"
