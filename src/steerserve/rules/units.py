"""Units of memory."""

from __future__ import annotations

MIB = 1 << 20
"""Bytes of a mebibyte. Answers give sizes of memory in mebibytes."""
