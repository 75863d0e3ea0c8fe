"""Units of memory."""

from __future__ import annotations

MIB = 1 << 20
"""Bytes of a mebibyte, in which every size that leaves the service is told."""
