"""Frames: what goes in comes out, whatever the cuts; every flipped bit is noticed; strangers are refused at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import CorruptFrame, ProtocolError
from paceline.wire.frames import HEADER_BYTES, Frame, FrameDecoder, Kind, checksum, encode

frames = st.lists(st.tuples(st.sampled_from(list(Kind)), st.integers(0, 5), st.binary(max_size=80)), max_size=6)


@given(frames, st.data())
def test_frames_survive_any_cut_of_the_stream(contents: list[tuple[Kind, int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(
        encode(kind, payload, generation=generation, sequence=sequence)
        for sequence, (kind, generation, payload) in enumerate(contents)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder()
    arrived: list[Frame] = []
    for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        arrived += decoder.feed(stream[first:last])
    assert [(frame.kind, frame.generation, frame.payload) for frame in arrived] == contents


@given(frames)
def test_reading_only_what_is_missing_ends_exactly_at_a_frame(contents: list[tuple[Kind, int, bytes]]) -> None:
    stream = b"".join(encode(kind, payload, sequence=i) for i, (kind, _, payload) in enumerate(contents))
    decoder = FrameDecoder()
    for _, _, payload in contents:
        whole: list[Frame] = []
        while not whole:
            count = decoder.num_missing
            whole = decoder.feed(stream[:count])
            stream = stream[count:]
        assert [frame.payload for frame in whole] == [payload]
    assert not stream


@given(st.binary(max_size=60), st.data())
def test_every_flipped_bit_of_a_frame_is_noticed(payload: bytes, data: st.DataObject) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode(Kind.DATA, b"first"))
    damaged = bytearray(encode(Kind.DATA, payload, sequence=1))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFrame):
        decoder.feed(damaged)


@settings(max_examples=200)
@given(st.integers(0, 3), st.sampled_from([0, 1, 63 * 1024, 64 * 1024, 64 * 1024 + 13, 300_001]), st.data())
def test_a_checksum_finds_every_single_flipped_bit(seed: int, size: int, data: st.DataObject) -> None:
    content = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    if seed == 0:
        content[:] = 255  # every addition carries as far as it can
    before = checksum(content.data)
    if size:
        bit = data.draw(st.integers(0, size * 8 - 1))
        content[bit // 8] ^= 1 << bit % 8
        assert checksum(content.data) != before


@given(st.integers(64 * 1024, 70_000), st.integers(1, 7))
def test_a_checksum_does_not_depend_on_where_the_bytes_lie(size: int, shift: int) -> None:
    content = np.random.default_rng(size).bytes(size)
    moved = bytearray(shift) + content
    assert checksum(memoryview(moved)[shift:]) == checksum(content)


def test_frames_of_older_generations_are_dropped_and_counted() -> None:
    decoder = FrameDecoder(floor=3)
    stream = b"".join(encode(Kind.DATA, b"x", generation=g, sequence=i) for i, g in enumerate([2, 3, 1, 4]))
    assert [frame.generation for frame in decoder.feed(stream)] == [3, 4]
    assert decoder.num_dropped == 2


def test_a_missing_frame_is_noticed() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode(Kind.DATA, b"", sequence=0))
    with pytest.raises(CorruptFrame, match="frame 2 came where frame 1 was due"):
        decoder.feed(encode(Kind.DATA, b"", sequence=2))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"P", bytes(64)])
def test_a_stranger_is_refused_by_its_first_bytes(garbage: bytes) -> None:
    if garbage == b"P":
        assert FrameDecoder().feed(garbage) == []  # it may still become one of ours
    else:
        with pytest.raises(ProtocolError, match="not a frame"):
            FrameDecoder().feed(garbage)


def test_a_frame_above_the_limit_is_refused_before_it_arrives() -> None:
    header = encode(Kind.DATA, bytes(101))[:HEADER_BYTES]
    with pytest.raises(ProtocolError, match="101 bytes, where at most 100"):
        FrameDecoder(limit=100).feed(header)


def test_another_version_of_the_format_is_named() -> None:
    import struct
    import zlib

    fields = struct.pack("<4sHHIIIQ", b"PCL\x07", 1, 0, 0, 0, 0, 0)
    with pytest.raises(ProtocolError, match="version 7"):
        FrameDecoder().feed(fields + struct.pack("<I", zlib.crc32(fields)))
