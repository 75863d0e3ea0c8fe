"""The methods of the Python client."""

from __future__ import annotations

from steerserve.client.calls import Listing, Mode, Noun, route

from .form import Pin, PinList


class Pins(Noun[Mode]):
    """Pinned features."""

    @route("GET", "/api/pins", items="pins")
    def list(self) -> Listing[Pin, PinList]: ...

    @route("PUT", "/api/pins/{sae_id}/{index}")
    def set(self, sae_id: str, index: int, note: str) -> Pin: ...
