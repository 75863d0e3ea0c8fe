"""Who sends a request, as far as the service can tell: the key, else the network address."""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

SITE_PREFIX = 64
"""Bits of an IPv6 address that name its site. One machine may have every address of its site."""

KEY_CHARACTERS = 16
_BACKGROUND = "batch of "
"""How the names of clients begin whose requests yield to all others. No other name begins so."""


def in_background(client: str) -> str:
    """The name of a client for those of its requests that yield to all others."""
    return _BACKGROUND + client


def is_in_background(client: str) -> bool:
    return client.startswith(_BACKGROUND)


def client(address: str | None, authorization: str | None, *, has_keys: bool) -> str:
    """The name under which the requests of one client are counted together.

    Args:
        address: the network address of the peer; None where the connection has none.
        authorization: the Authorization header.
        has_keys: whether the service has checked the key in this header. Otherwise anybody may send any text there.
    """
    if has_keys:
        key = (authorization or "").partition(" ")[2].strip()
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        return f"key {digest[:KEY_CHARACTERS]}"
    try:
        parsed: IPv4Address | IPv6Address = ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or "unknown"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Network((int(parsed), SITE_PREFIX), strict=False))
    return str(parsed)
