"""The settings of batches and of their files."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from steerserve.settings.limits import MIB_MAXIMUM, Count, CountOrNone


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
