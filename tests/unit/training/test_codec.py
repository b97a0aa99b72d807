"""Values and arrays as bytes: what goes in comes out, and nothing else is let in."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from paceline.errors import ProtocolError
from paceline.training.codec import decode, encode

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers(-(2**63), 2**63)
VALUES = st.recursive(
    SCALARS | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_plain_values_come_back(value: Any) -> None:
    assert decode(encode(value)) == value


@given(
    arrays.arrays(
        st.one_of(
            arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="="), arrays.floating_dtypes(endianness="=")
        ),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
    )
)
def test_arrays_come_back_bit_for_bit(array: np.ndarray) -> None:
    back = decode(encode({"a": [array]}))["a"][0]
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.writeable


def test_strided_arrays_and_bfloat16_travel_too() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    strided = np.arange(12).reshape(3, 4)[:, ::2]
    assert decode(encode(strided)).tolist() == strided.tolist()
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    back = decode(encode(half))
    assert back.dtype == half.dtype
    assert back.tobytes() == half.tobytes()


def test_numpy_scalars_and_tuples_become_plain() -> None:
    assert decode(encode((np.float32(0.5), np.int64(3), (1, 2)))) == [0.5, 3, [1, 2]]


@pytest.mark.parametrize("value", [object(), len, np.array([object()]), {1: {2: object()}}])
def test_what_does_not_travel_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


@given(st.binary(max_size=200))
def test_damaged_bytes_are_a_protocol_error_and_nothing_worse(payload: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(payload)


@given(st.integers(0, 127), st.binary(max_size=60))
def test_damaged_arrays_are_a_protocol_error_and_nothing_worse(code: int, data: bytes) -> None:
    payload = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, data))
    with contextlib.suppress(ProtocolError):
        decode(payload)
