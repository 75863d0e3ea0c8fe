"""Starts work that outlives the request in which it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

Result = TypeVar("Result")


def start(work: Coroutine[Any, Any, Result], *, name: str | None = None) -> asyncio.Task[Result]:
    """A task that does not count as part of the request in which it begins. Its lines in the log, also those about
    other requests, would otherwise carry the id and the client of that request."""
    return asyncio.create_task(work, name=name, context=Context())
