"""What an untrusted zip archive may not say about itself. It is checked before any entry is read."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

_LOCAL_HEADER = 30
_LISTED = b"PK\x01\x02"
"""What an entry begins with in the list at the end of an archive."""


def fault(entries: Sequence[zipfile.ZipInfo], size: int) -> str | None:
    """Why an archive of `size` bytes with these entries is refused, as the end of a sentence that begins with its name;
    None if it is not. Entries follow one another, are stored or deflated, and have different names."""
    if len({entry.filename for entry in entries}) < len(entries):
        return "has two entries of one name"
    end = 0
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"has an entry of unknown compression, {entry.filename[:80]!r}"
        if is_stored(entry) and entry.file_size != entry.compress_size:
            return f"gives two sizes of the entry {entry.filename[:80]!r}"
        if entry.header_offset < end:
            return "has entries that overlap"
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
    return "ends before its last entry" if end > size else None


def has_more_entries(data: bytes, maximum: int) -> bool:
    """Whether an archive may have more entries than that. To list an entry takes far longer than to count it."""
    return data.count(_LISTED) > maximum


def is_stored(entry: zipfile.ZipInfo) -> bool:
    return entry.compress_type == zipfile.ZIP_STORED
