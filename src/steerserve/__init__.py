"""steerserve: a server of language models that are steered by features of sparse autoencoders."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steerserve.client import AsyncClient, Client, ServiceError

    __version__: str

__all__ = ["AsyncClient", "Client", "ServiceError", "__version__"]


def __getattr__(name: str) -> object:
    """The client is imported when it is first used, because the service itself does not need it. The version is found
    out when it is first asked for, because that may take a question to git."""
    if name == "__version__":
        return importlib.import_module("steerserve.build").version()
    if name in __all__:
        return getattr(importlib.import_module("steerserve.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
