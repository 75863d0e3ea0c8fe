"""Captures on disk: folders with values of sites in safetensors shards, an index of their rows, and a record.

A shard that is not full has the suffix PARTIAL, and room for all rows of a shard. Its rows count as far as the record
says, which is replaced whole after each part of the reading. So a capture goes on after any end of the service.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import shutil
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from operator import add
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import structs

from steerserve.errors import Refusal
from steerserve.rules.text import shown
from steerserve.rules.units import MIB

RECORD, INDEX = "capture.json", "index.jsonl"
PARTIAL, UNFINISHED = ".partial", ".new"
ID = re.compile(r"capture_[0-9a-f]{12}")
SHARD = re.compile(r"shard-[0-9]{5,}\.safetensors")
COPIED_BYTES = 1 << 22
DTYPES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
)
"""The name of a type -> its name in safetensors, and the bytes of one number."""


class StoredSite(msgspec.Struct, frozen=True, kw_only=True):
    """A site at a layer. `tensor` is its name in the shards. `mean` is the mean of all rows, [width] in little-endian
    float64 as base64, and `norm` their mean length; both are there once there are rows."""

    tensor: str
    site: str
    layer: int
    heads: list[int] | None
    width: int
    module_path: str
    norm: float | None = None
    mean: str | None = None


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a capture.

    Attributes:
        asked: what the request said, which must be the same when the capture is carried on.
        model_digest, steering_state, texts_digest: identify the content of the model, the edits that it had, and the
            texts. They are None where this is not known, where there were no edits, and until the texts were looked at.
        next_text, next_token: the reading goes on at this token of this text.
        tokens, rows: the tokens that were read, and the rows that were written of them.
        index_bytes: the size of the index with the lines of these rows.
    """

    id: str
    name: str
    created_at: datetime
    finished_at: datetime | None = None
    model: str
    model_digest: str | None
    steering_state: str | None
    texts_digest: str | None = None
    asked: dict[str, Any]
    dtype: str
    sites: list[StoredSite]
    next_text: int = 0
    next_token: int = 0
    tokens: int = 0
    rows: int = 0
    index_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """The bytes of the values of one row."""
        return DTYPES[self.dtype][1] * sum(one.width for one in self.sites)

    @property
    def stored_bytes(self) -> int:
        return self.rows * self.row_bytes + self.index_bytes

    @property
    def shard_rows(self) -> int:
        """The rows of a whole shard."""
        return max(1, int(self.asked["shard_mb"]) * MIB // self.row_bytes)


class CapturedValues(msgspec.Struct, frozen=True):
    """Values of a site, or of some of its heads, one after the other."""

    numbers: array[float]
    heads: Sequence[int] | None


class CaptureFolders:
    """The folders of all captures."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def all(self) -> list[Capture]:
        """All captures, oldest first. A folder whose record cannot be read is none."""
        if not self.root.is_dir():
            return []
        found = [self._read(one) for one in self.root.iterdir() if ID.fullmatch(one.name)]
        kept = [one for one in found if one is not None]
        return sorted(kept, key=lambda one: (one.created_at, one.id))

    def get(self, capture_id: str) -> Capture:
        """Raises:
        Refusal: CAPTURE_NOT_FOUND.
        """
        found = self._read(self.folder(capture_id))
        if found is None:
            raise unknown_capture(capture_id)
        return found

    def folder(self, capture_id: str) -> Path:
        """Raises:
        Refusal: CAPTURE_NOT_FOUND for what is no id.
        """
        if not ID.fullmatch(capture_id):
            raise unknown_capture(capture_id)
        return self.root / capture_id

    def files(self, capture_id: str) -> list[tuple[str, int]]:
        """The names and the sizes of the files that are whole: the record, the index, and the shards.

        Raises:
            Refusal: CAPTURE_NOT_FOUND.
        """
        with _deleted_refused(capture_id):
            found = [
                (one.name, one.stat().st_size)
                for one in self.folder(capture_id).iterdir()
                if one.name in (RECORD, INDEX) or SHARD.fullmatch(one.name)
            ]
        return sorted(found)

    def file(self, capture_id: str, name: str) -> tuple[Path, os.stat_result]:
        """Raises:
        Refusal: CAPTURE_NOT_FOUND.
        """
        path = self.folder(capture_id) / name
        if not (name in (RECORD, INDEX) or SHARD.fullmatch(name)) or not path.is_file():
            why = f"{capture_id} has no file {shown(name)}"
            raise Refusal("CAPTURE_NOT_FOUND", why, capture_id=capture_id, file=shown(name))
        with _deleted_refused(capture_id):
            return path, path.stat()

    def row(self, capture: Capture, site: int, row: int) -> array[float]:
        """The values of the site with this number in one row of a capture.

        Raises:
            Refusal: CAPTURE_NOT_FOUND where its file is gone.
        """
        number, place = divmod(row, capture.shard_rows)
        path = self.folder(capture.id) / _shard_name(number)
        is_last = number == capture.rows // capture.shard_rows
        rows = capture.shard_rows
        if path.is_file():
            rows = capture.rows - number * rows if is_last else rows
        else:
            path = _partial(path)
        try:
            with path.open("rb") as file:
                start, width = _place(capture, rows, site)
                file.seek(start + place * width)
                return _numbers(capture.dtype, file.read(width))
        except OSError as error:
            why = f"row {row} of {capture.id} cannot be read: {error}"
            raise Refusal("CAPTURE_NOT_FOUND", why, capture_id=capture.id) from error

    def make_root(self) -> None:
        """Make the folder of all captures."""
        self.root.mkdir(parents=True, exist_ok=True)

    def add(self, capture: Capture) -> None:
        """Make the folder of a capture."""
        with full_disk_refused():
            folder = self.folder(capture.id)
            folder.mkdir(parents=True)
            (folder / INDEX).touch()
            self.write_record(capture)

    def remove(self, capture_id: str) -> None:
        """Delete a capture: its record first, so that only one of several callers deletes it.

        Raises:
            Refusal: CAPTURE_NOT_FOUND.
        """
        folder = self.folder(capture_id)
        with _deleted_refused(capture_id):
            (folder / RECORD).unlink()
        shutil.rmtree(folder)

    def write_record(self, capture: Capture) -> None:
        """Replace the record of a capture, whole or not at all."""
        path = self.folder(capture.id) / RECORD
        new = path.with_name(RECORD + UNFINISHED)
        text = msgspec.json.format(msgspec.json.encode(capture), indent=1)
        new.write_bytes(text + b"\n")
        new.replace(path)

    def _read(self, folder: Path) -> Capture | None:
        try:
            return msgspec.json.decode((folder / RECORD).read_bytes(), type=Capture)
        except (OSError, msgspec.MsgspecError):
            return None


class Rows(msgspec.Struct, frozen=True):
    """Rows of one context: of the text `text`, the context with this number, its positions that were read and their
    tokens; and for each site the parts of its values, their sum [width] in float64, and the sum of their lengths."""

    text: int
    context: int
    positions: Sequence[int]
    tokens: Sequence[int]
    values: Sequence[Sequence[bytes]]
    sums: Sequence[tuple[bytes, float]]


class CaptureWriter:
    """Writes the rows of one capture. `capture` has its record, as it was written last."""

    def __init__(self, folders: CaptureFolders, capture: Capture) -> None:
        self._folders = folders
        self._folder = folders.folder(capture.id)
        self.capture = capture
        self._totals = [_total(one, capture.rows) for one in capture.sites]

    def write(self, some: Sequence[Rows], **progress: int) -> None:
        """Write rows, then the record with this progress. Where this fails, the capture is as it was before.

        Raises:
            Refusal: INSUFFICIENT_DISK.
        """
        before = self.capture
        lines = b"".join(map(_index_lines, some))
        count, totals = before.rows, self._totals
        with full_disk_refused():
            with (self._folder / INDEX).open("r+b") as index:
                index.truncate(before.index_bytes)
                index.seek(before.index_bytes)
                index.write(lines)
            for rows in some:
                self._write_values(count, rows)
                count += len(rows.positions)
                totals = [_added(*pair) for pair in zip(totals, rows.sums, strict=True)]
            self._record(
                structs.replace(
                    before,
                    rows=count,
                    index_bytes=before.index_bytes + len(lines),
                    sites=[
                        _described(*pair, count) for pair in zip(before.sites, totals, strict=True)
                    ],
                    **progress,
                )
            )
        self._totals = totals

    def set_digest(self, digest: str) -> None:
        """Note what the texts are."""
        with full_disk_refused():
            self._record(structs.replace(self.capture, texts_digest=digest))

    def finish(self, now: datetime) -> None:
        """Make a shard of the rows of the last one, and note that the capture is done.

        Raises:
            Refusal: INSUFFICIENT_DISK.
        """
        number, rows = divmod(self.capture.rows, self.capture.shard_rows)
        shard = self._shard(number)
        with full_disk_refused():
            if rows:
                self._copy_rows(shard, rows)
            self._record(structs.replace(self.capture, finished_at=now))
        _partial(shard).unlink(missing_ok=True)

    # ------------------------------------------------------------- inside

    def _record(self, capture: Capture) -> None:
        self._folders.write_record(capture)
        self.capture = capture

    def _shard(self, number: int) -> Path:
        return self._folder / _shard_name(number)

    def _write_values(self, first: int, rows: Rows) -> None:
        """Write the values of rows, of which the first has this number in the capture."""
        size = self.capture.shard_rows
        for number in range(first // size, -(-(first + len(rows.positions)) // size)):
            begin, end = (
                max(first, number * size),
                min(first + len(rows.positions), (number + 1) * size),
            )
            shard = self._open_partial(number)
            with shard.open("r+b") as file:
                for place, width in self._tensors(size):
                    values = rows.values[place[0]]
                    file.seek(place[1] + (begin - number * size) * width)
                    for part in _between(values, (begin - first) * width, (end - first) * width):
                        file.write(part)
                if end == (number + 1) * size:
                    file.flush()
                    os.fsync(file.fileno())
            if end == (number + 1) * size:
                shard.replace(self._shard(number))

    def _tensors(self, rows: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Of each site in a shard with so many rows, ((its number, the offset of its values), the bytes of a row)."""
        for site in range(len(self.capture.sites)):
            offset, width = _place(self.capture, rows, site)
            yield (site, offset), width

    def _open_partial(self, number: int) -> Path:
        """The file of a shard that has room for all rows of a shard."""
        shard = self._shard(number)
        partial = _partial(shard)
        if partial.exists():
            shard.unlink(missing_ok=True)  # the copy of a finish that was cut
        elif shard.exists():
            shard.replace(partial)  # the shard was full, and the record was not written
        else:
            size = self.capture.shard_rows
            header = _header(self.capture, size)
            new = shard.with_name(shard.name + UNFINISHED)
            with new.open("wb") as file:
                file.write(header)
                file.truncate(len(header) + size * self.capture.row_bytes)
            new.replace(partial)
        return partial

    def _copy_rows(self, shard: Path, rows: int) -> None:
        """Copy the first rows of the partial shard into a shard that has only these."""
        new = shard.with_name(shard.name + UNFINISHED)
        with _partial(shard).open("rb") as source, new.open("wb") as file:
            file.write(_header(self.capture, rows))
            for (_, offset), width in self._tensors(self.capture.shard_rows):
                source.seek(offset)
                left = rows * width
                while left:
                    part = source.read(min(left, COPIED_BYTES))
                    file.write(part)
                    left -= len(part)
            file.flush()
            os.fsync(file.fileno())
        new.replace(shard)


@contextmanager
def full_disk_refused() -> Iterator[None]:
    """Raises:
    Refusal: INSUFFICIENT_DISK where the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Refusal("INSUFFICIENT_DISK", "the disk of the captures is full") from error


@contextmanager
def _deleted_refused(capture_id: str) -> Iterator[None]:
    """Refuse a capture that is deleted meanwhile.

    Raises:
        Refusal: CAPTURE_NOT_FOUND.
    """
    try:
        yield
    except FileNotFoundError:
        raise unknown_capture(capture_id) from None


def unknown_capture(capture_id: str) -> Refusal:
    return Refusal(
        "CAPTURE_NOT_FOUND", f"no capture {shown(capture_id)}", capture_id=shown(capture_id)
    )


def _partial(shard: Path) -> Path:
    return shard.with_name(shard.name + PARTIAL)


def _header(capture: Capture, rows: int) -> bytes:
    """The header of a shard with so many rows: 8 bytes of length, then JSON."""
    name, size = DTYPES[capture.dtype]
    tensors: dict[str, object] = {}
    offset = 0
    for site in capture.sites:
        end = offset + rows * site.width * size
        shape, offsets = [rows, site.width], [offset, end]
        tensors[site.tensor] = {"dtype": name, "shape": shape, "data_offsets": offsets}
        offset = end
    text = msgspec.json.encode(tensors)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _place(capture: Capture, rows: int, site: int) -> tuple[int, int]:
    """The offset of the values of the site with this number in a shard with so many rows, and the bytes of one row."""
    size = DTYPES[capture.dtype][1]
    before = sum(one.width for one in capture.sites[:site])
    return len(_header(capture, rows)) + rows * before * size, capture.sites[site].width * size


def _numbers(dtype: str, data: bytes) -> array[float]:
    """The numbers of these little-endian bytes."""
    if dtype == "float32":
        return array("f", data)
    if dtype == "float16":
        return array("f", struct.unpack(f"<{len(data) // 2}e", data))
    # the bits of a bfloat16 are the upper ones of a float32
    wide = array("I", (bits << 16 for bits in array("H", data)))
    return array("f", wide.tobytes())


def _shard_name(number: int) -> str:
    return f"shard-{number:05}.safetensors"


def _between(parts: Sequence[bytes], start: int, end: int) -> Iterator[memoryview]:
    """The bytes [start, end) of what the parts are together."""
    at = 0
    for part in parts:
        low, high = max(start - at, 0), min(end - at, len(part))
        if low < high:
            yield memoryview(part)[low:high]
        at += len(part)


def _index_lines(rows: Rows) -> bytes:
    return b"".join(
        b'{"text":%d,"context":%d,"position":%d,"token":%d}\n'
        % (rows.text, rows.context, position, token)
        for position, token in zip(rows.positions, rows.tokens, strict=True)
    )


_Total = tuple["array[float]", float]
"""The sum of the rows of a site [width], and the sum of their lengths."""


def _total(site: StoredSite, rows: int) -> _Total:
    if site.mean is None or site.norm is None:
        return array("d", bytes(8 * site.width)), 0.0
    mean = array("d", base64.b64decode(site.mean))
    return array("d", (value * rows for value in mean)), site.norm * rows


def _added(total: _Total, more: tuple[bytes, float]) -> _Total:
    values, lengths = more
    if not values:
        return total
    return array("d", map(add, total[0], array("d", values))), total[1] + lengths


def _described(site: StoredSite, total: _Total, rows: int) -> StoredSite:
    if not rows:
        return site
    mean = array("d", (value / rows for value in total[0]))
    return structs.replace(
        site, mean=base64.b64encode(mean.tobytes()).decode(), norm=total[1] / rows
    )
