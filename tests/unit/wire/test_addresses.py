"""Addresses as text, IPv4 and IPv6, and the local address that routes to a peer."""

from __future__ import annotations

import pytest

from paceline.wire.addresses import join_address, routing_address, split_address


@pytest.mark.parametrize(("host", "port"), [("10.0.0.7", 4100), ("::1", 80), ("fe80::1%eth0", 1), ("a.example", 65535)])
def test_an_address_comes_back_as_it_was(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", ":80", "::1:80", "host:x", "host:70000"])
def test_an_address_that_cannot_be_read_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="address") as caught:
        split_address(text)
    assert repr(text) in str(caught.value)


def test_the_address_that_routes_to_loopback_is_loopback() -> None:
    assert routing_address("127.0.0.1:9") == "127.0.0.1"
