"""The names under which the requests of one client are counted together."""

from __future__ import annotations

import pytest

from steerserve.rules.clients import client


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_without_keys_a_client_is_its_address_whatever_it_claims(
    address: str | None, name: str
) -> None:
    for claimed in (None, "Bearer one", "Bearer two"):
        assert client(address, claimed, has_keys=False) == name


def test_with_keys_a_client_is_its_key_wherever_it_comes_from() -> None:
    one = client("192.0.2.7", "Bearer one", has_keys=True)
    assert client("192.0.2.8", "Bearer one", has_keys=True) == one
    assert client(None, "bEARER  one ", has_keys=True) == one
    assert client("192.0.2.7", "Bearer two", has_keys=True) != one


def test_a_name_does_not_have_the_key() -> None:
    assert "sentinel" not in client(None, "Bearer sentinel", has_keys=True)
