"""Plain values and numpy arrays as bytes, for state that travels and results that are kept. Nothing is unpickled."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from paceline.communication.arrays import dtype_name, dtype_of
from paceline.errors import ProtocolError

_ARRAY = 1


def encode(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, list, tuple (it comes back as a list), dict with any of these as
    keys, and numpy arrays and scalars. Raises `TypeError` for anything else."""
    return _encoder.encode(value)


def decode(payload: bytes) -> Any:
    """The value that `encode` was given. Raises `ProtocolError` on damaged bytes."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ProtocolError(f"cannot decode {len(payload)} bytes of state: {error}") from error


def _encode_hook(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("arrays of Python objects do not travel")
        head = msgspec.msgpack.encode((dtype_name(value.dtype), value.shape))
        body = np.ascontiguousarray(value).tobytes()
        return msgspec.msgpack.Ext(_ARRAY, len(head).to_bytes(4, "little") + head + body)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not travel")


def _decode_hook(code: int, data: memoryview) -> Any:
    if code != _ARRAY:
        raise ProtocolError(f"unknown extension {code}")
    length = int.from_bytes(data[:4], "little")
    name, shape = msgspec.msgpack.decode(data[4 : 4 + length])
    return np.frombuffer(data[4 + length :], dtype=dtype_of(name)).reshape(shape).copy()


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_decoder = msgspec.msgpack.Decoder(ext_hook=_decode_hook)
