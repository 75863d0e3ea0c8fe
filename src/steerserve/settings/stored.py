"""The settings of what is stored of requests: recorded answers, and batches with their files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from steerserve.settings.limits import MIB_MAXIMUM, Count, CountOrNone


class RecordSettings(BaseSettings, use_attribute_docstrings=True):
    """The settings of recorded answers. `Settings` has them among the other settings."""

    record_runs: bool = False
    """Keep every answer of /v1 with its request, its steering and its seed in the database, so that it can be made
    again. The texts are those of users. A request with `store: false` is not kept."""
    runs_max_days: Annotated[float, Field(gt=0, le=3650)] = 7
    """Days for which a recorded answer is kept."""
    runs_max_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 256
    """Most MiB of recorded answers in the database; the oldest are deleted."""


class BatchSettings(BaseSettings, use_attribute_docstrings=True):
    """The limits of the Batch API. `Settings` has them among the other settings."""

    batch_file_mb: Annotated[int, Field(ge=1, le=1024)] = 64
    """Largest file in MiB that `/v1/files` takes. MAX_BODY_BYTES bounds each line of it."""
    batch_max_lines: Count = 50_000
    """Lines in the input of one batch."""
    max_batch_documents: CountOrNone = 500
    """Most files and batches that are stored, in all. Their texts are those of users; 0 stores none, and files and
    batches are refused."""
    batch_storage_mb: Annotated[int, Field(ge=1, le=MIB_MAXIMUM)] = 1024
    """Most MiB that the stored files and the answers of batches have. While there is no room, batches wait."""
    max_unfinished_batches: Count = 50
    """Batches that are not over yet; the next is refused."""
    batch_keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days after which an uploaded file, a batch that is over, and its files are deleted, where the request names no
    time."""
