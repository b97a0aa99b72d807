"""Addresses as text: "10.0.0.7:4100", "[fe80::1]:4100", "host:4100". Next file: `channels.py`."""

from __future__ import annotations

import socket


def split_address(address: str) -> tuple[str, int]:
    """ "[::1]:80" -> ("::1", 80). Raises `ValueError` with the text that could not be read."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {address!r}: an IPv6 address needs brackets, as in '[::1]:4100'")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"address {address!r} is not of the form 'host:port'")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """("::1", 80) -> "[::1]:80"."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def routing_address(to: str) -> str:
    """The local IP address from which `to` ("host:port") is reached; what peers should be told. Sends nothing."""
    host, port = split_address(to)
    error: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)
            except OSError as failed:
                error = failed
                continue
            return str(probe.getsockname()[0])
    raise ConnectionError(f"no route to {to}: {error}")
