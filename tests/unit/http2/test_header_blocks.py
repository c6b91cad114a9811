"""Header blocks against the `hpack` library: encoding, decoding, and the cache."""

import re

import pytest
from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hpack.exceptions import OversizedHeaderListError
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.server.net.http2.common_blocks import CommonBlocks
from stoker.server.net.http2.events import Flood, FloodRejected
from stoker.server.net.http2.frames import ConnectionFault, ErrorCode
from stoker.server.net.http2.headers import FieldDecoder, HeaderDecoder, encode_block
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import END_HEADERS, REQUEST, RawPeer, block, expect, frame, request, u32

C, H = ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.COMPRESSION_ERROR
NAMES = st.sampled_from([b":path", b":method", b"content-type", b"cookie", b"grpc-timeout", b"x", b"user-agent"]) | st.binary(max_size=40)
FIELDS = st.lists(
    st.tuples(NAMES, st.sampled_from([b"", b"GET", b"/", b"gzip, deflate"]) | st.binary(max_size=200), st.booleans()), max_size=12
)
SIZES = st.sampled_from([0, 40, 100, 500, 4096])


@given(fields=st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=12))
def test_encoded_blocks_decode_to_their_fields_and_leave_the_table_alone(fields):
    decoder = Decoder()
    assert [tuple(field) for field in decoder.decode(encode_block(fields), raw=True)] == fields
    assert not decoder.header_table.dynamic_entries


@given(blocks=st.lists(st.tuples(FIELDS, st.booleans(), st.none() | SIZES), max_size=8))
def test_decoder_agrees_with_the_library_on_encoded_blocks(blocks):
    encoder = Encoder()
    ours = FieldDecoder(1 << 16)
    for fields, huffman, table_bytes in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        decoded, size_bytes = ours.decode(encoder.encode(fields, huffman=huffman))
        assert decoded == [(name, value) for name, value, _ in fields]
        assert size_bytes == sum(len(name) + len(value) + 32 for name, value in decoded)
        assert ours.table.dynamic_entries == encoder.header_table.dynamic_entries


REPRESENTATIONS = st.sampled_from(
    [b"\x82", b"\xbe", b"\xbf", b"\xff\x00", b"\x7f\x00\x01x", b"\x40\x01a\x01b", b"\x00\x01a\x01b", b"\x20"]
) | st.binary(max_size=12)


def outcome(decode):
    """The result of decoding: fields, or the error code."""
    try:
        return [tuple(field) for field in decode()]
    except OversizedHeaderListError:
        return C
    except HPACKError:
        return H
    except ConnectionFault as fault:
        return fault.code


#: Where the library is more lenient: more than two updates of the table's size (RFC 7541, section 4.2), integers padded beyond 28 bits.
STRICTER = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){3}|.*[\x80-\xff]{4}", re.DOTALL)


@given(blocks=st.lists(st.lists(REPRESENTATIONS, max_size=6).map(b"".join), max_size=5))
@example(blocks=[b"\x20\x20\x21"])
@example(blocks=[b"\x3f\x80\x80\x80\x80\x00"])
def test_decoder_agrees_with_the_library_on_any_bytes(blocks):
    ours, theirs = FieldDecoder(2000), Decoder(2000)
    for data in blocks:
        found = outcome(lambda data=data: ours.decode(data)[0])
        expected = outcome(lambda data=data: theirs.decode(data, raw=True))
        if found == H and STRICTER.match(data):
            return
        assert found == expected
        if not isinstance(found, list):
            return
        assert ours.table.dynamic_entries == theirs.header_table.dynamic_entries


INVALID = {
    "index 0": b"\x80",
    "index of nothing": b"\xbe",
    "index far out": b"\xff\xff\xff\x7f",
    "name of nothing": b"\x7e\x01x",
    "endless integer": b"\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "integer cut": b"\xff\x80",
    "no name": b"\x40",
    "name cut": b"\x40\x05abc",
    "no value": b"\x40\x01a",
    "value cut": b"\x40\x01a\x05bcd",
    "length beyond the block": b"\x40\x7f\xff\xff\x7fa",
    "Huffman padding of zeros": b"\x40\x01a\x81\x00",
    "Huffman end of string": b"\x40\x01a\x84\xff\xff\xff\xff",
    "Huffman padding of a byte": b"\x40\x01a\x82\x1f\xff",
    "table larger than allowed": b"\x3f\xe2\x1f",
    "three size updates": b"\x20\x20\x20",
    "size update behind a field": b"\x82\x20",
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_block_ends_the_connection(case):
    peer = RawPeer()
    peer.send(frame(1, END_HEADERS, 1, INVALID[case]))
    assert peer.end() == H


def test_block_is_cached_only_while_the_table_is_unchanged():
    decoder, encoder = HeaderDecoder(H2Limits(), CommonBlocks()), Encoder()
    first = encoder.encode(REQUEST)
    assert decoder.request(first).headers == REQUEST
    indexed = encoder.encode(REQUEST)
    known = decoder.request(indexed)
    assert decoder.request(indexed) is known
    # The same bytes mean other fields once the table has moved on.
    decoder.request(encoder.encode([*REQUEST, (b"x", b"1")]))
    moved = decoder.request(indexed).headers
    assert moved != REQUEST
    assert moved[-1] == (b"x", b"1")
    # And again what they meant when it has been resized to nothing and filled anew.
    decoder.request(b"\x20\x3f\xe1\x1f" + Encoder().encode(REQUEST))
    assert decoder.request(indexed).headers == REQUEST


def test_trailers_and_dropped_blocks_change_the_table_too():
    decoder, encoder = HeaderDecoder(H2Limits(), CommonBlocks()), Encoder()
    decoder.request(encoder.encode(REQUEST))
    indexed = encoder.encode(REQUEST)
    known = decoder.request(indexed)
    decoder.fields(encoder.encode([(b"x", b"1")]))
    assert decoder.request(indexed) is not known
    assert decoder.request(indexed).headers[-1] == (b"x", b"1")


@given(rounds=st.lists(st.integers(0, 3), max_size=40))
def test_cache_never_changes_the_decoded_fields(rounds):
    decoder, plain, encoder = HeaderDecoder(H2Limits(), CommonBlocks()), Decoder(), Encoder()
    sent: list[bytes] = []
    for choice in rounds:
        if choice == 0 or not sent:
            sent.append(encoder.encode([*REQUEST, (b"x", b"%d" % len(sent))]))
        elif choice == 1:
            sent.append(encoder.encode(REQUEST))
        elif choice == 2:
            encoder.header_table_size = 150 + 100 * (len(sent) % 3)
            sent.append(encoder.encode(REQUEST[:2]))
        # Some blocks come once more: what they mean then is between the two decoders alone.
        data = sent[-1] if choice != 3 else sent[len(sent) // 2]
        try:
            expected = tuple(tuple(field) for field in plain.decode(data, raw=True))
        except HPACKError:
            with pytest.raises(ConnectionFault):
                decoder.request(data)
            return
        assert decoder.request(data).headers == expected


def test_cached_blocks_and_fields_are_bounded():
    decoder = HeaderDecoder(H2Limits(), CommonBlocks())
    for number in range(1000):
        decoder.request(block((*REQUEST, (b"x", b"%d" % number))))
        assert decoder.cached_blocks <= 64
        assert decoder.passed_fields <= 128
    entries = decoder.table_entries
    long = block((*REQUEST, (b"x", b"v" * 2000)))
    assert decoder.request(long) is not decoder.request(long)
    assert decoder.table_entries == entries


def test_smaller_own_table_binds_the_peer_once_acknowledged():
    peer = RawPeer(H2Limits(header_table_bytes=100))
    indexed = Encoder()
    peer.send(frame(1, END_HEADERS, 1, indexed.encode(REQUEST)))
    assert peer.end() == H
    peer = RawPeer(H2Limits(header_table_bytes=100))
    indexed = Encoder()
    indexed.header_table_size = 100
    for stream_id in (1, 3):
        started = peer.start(frame(1, END_HEADERS, stream_id, indexed.encode(REQUEST)))
        assert started.headers == REQUEST


def test_larger_own_table_can_be_filled():
    peer = RawPeer(H2Limits(header_table_bytes=16_384))
    encoder = Encoder()
    encoder.header_table_size = 16_384
    fields = (*REQUEST, *((b"x-%d" % number, b"v" * 100) for number in range(60)))
    for stream_id in (1, 3):
        started = peer.start(frame(1, END_HEADERS, stream_id, encoder.encode(fields)))
        assert started.headers == fields
    assert len(encoder.header_table.dynamic_entries) > 60


# ---- bombs


def test_small_block_that_decodes_to_much_is_not_decoded():
    peer = RawPeer()
    entry = Encoder().encode([(b"x", b"v" * 3900)], huffman=False)
    bomb = entry + b"\xbe" * 15_000
    (event,) = peer.send(frame(1, END_HEADERS, 1, bomb[:16_384]))
    assert expect(FloodRejected, event).flood is Flood.HEADERS
    assert [sent.payload for sent in peer.output() if sent.kind == 3] == [u32(C)]


def test_many_metadata_keys_end_the_connection_before_they_are_made():
    peer = RawPeer()
    fields = block((*REQUEST, *((b"k%d" % number, b"v") for number in range(100_000))))
    parts = [fields[start : start + 16_384] for start in range(0, len(fields), 16_384)]
    peer.send(frame(1, 0, 1, parts[0]), *(frame(9, 0, 1, part) for part in parts[1:]))
    assert peer.end() == C


def test_repeated_table_size_updates_leave_the_server_usable():
    peer = RawPeer()
    encoder = Encoder()
    filled = encoder.encode([*REQUEST, *((b"k%d" % number, b"v") for number in range(60))])
    peer.send(frame(1, END_HEADERS, 1, filled))
    for stream_id in range(3, 400, 2):
        started = peer.start(frame(1, END_HEADERS, stream_id, b"\x20\x3f\xe1\x1f" + block()))
        assert started.headers == REQUEST


def test_invalid_header_affects_no_other_call_or_connection():
    """gRPC CVE-2024-7246: a refused field must not stay in the table as another one."""
    peer, other = RawPeer(), RawPeer()
    encoder, other_encoder = Encoder(), Encoder()
    other.send(frame(1, END_HEADERS, 1, other_encoder.encode(REQUEST)))
    bad = (*REQUEST, (b"X-Bad", b"1"), (b"x-line", b"1\r\n2"), (b"x-kept", b"kept"))
    assert peer.send(frame(1, END_HEADERS, 1, encoder.encode(bad))) == []
    good = (*REQUEST, (b"x-kept", b"kept"))
    for stream_id in (3, 5):
        started = peer.start(frame(1, END_HEADERS, stream_id, encoder.encode(good)))
        assert started.headers == good
    for stream_id in (3, 5):
        started = other.start(frame(1, END_HEADERS, stream_id, other_encoder.encode(REQUEST)))
        assert started.headers == REQUEST
    assert peer.start(request(7, fields=REQUEST)).headers == REQUEST


def test_never_indexed_fields_are_not_stored_in_the_table():
    peer = RawPeer()
    secret = NeverIndexedHeaderTuple(b"authorization", b"Bearer secret")
    data = Encoder().encode([*((name, value, True) for name, value in REQUEST), secret])
    started = peer.start(frame(1, END_HEADERS, 1, data))
    assert started.headers[-1] == (b"authorization", b"Bearer secret")
    assert peer.server.statistics().dynamic_table_entries == 0
