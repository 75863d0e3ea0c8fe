"""The address of a client behind a proxy.

A proxy adds the address of its peer at the right end of `X-Forwarded-For`; what stands further left came with the
request, and may be made up. So the client is the rightmost address that is no proxy of TRUSTED_PROXIES, and the header
counts only in requests that such a proxy sends.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

HOPS = 32
"""Addresses of the header that are looked at, from the right."""
Address = IPv4Address | IPv6Address


class Forwarded:
    """Puts the address of the client into the place of the address of a trusted proxy, for the log and for the turns
    that clients take.

    Args:
        proxies: addresses and networks.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self._app = app
        self._proxies = [ip_network(proxy, strict=False) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope.get("client"):
            peer = _address(scope["client"][0])
            if peer is not None and self._is_proxy(peer):
                client = self._client(peer, Headers(scope=scope).getlist("x-forwarded-for"))
                scope = {**scope, "client": (str(client), 0)}
        await self._app(scope, receive, send)

    def _client(self, peer: Address, headers: list[str]) -> Address:
        """The rightmost address that is no proxy, or the leftmost one that can be read before what is no address."""
        client = peer
        for text in reversed(",".join(headers).rsplit(",", HOPS)[-HOPS:]):
            address = _address(text.strip())
            if address is None:
                return client
            client = address
            if not self._is_proxy(client):
                return client
        return client

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _address(text: str) -> Address | None:
    """An address, also with a port (`1.2.3.4:5`, `[::1]:5`). An IPv4 address in the form of IPv6 is that address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
