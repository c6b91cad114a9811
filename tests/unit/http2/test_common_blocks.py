"""Decoded header blocks that connections share: they never change what a block means, and their number is bounded."""

from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.net.http2.common_blocks import CommonBlocks
from stoker.server.net.http2.connection import ServerConnection
from stoker.server.net.http2.frames import PREFACE, settings_frame
from stoker.server.net.http2.headers import HeaderDecoder
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_raw import REQUEST, block, request

#: The connections of one property test.
_CONNECTIONS = 3


def decoders(common: CommonBlocks, count: int) -> list[HeaderDecoder]:
    return [HeaderDecoder(H2Limits(), common) for _ in range(count)]


def first_blocks() -> tuple[bytes, bytes]:
    """A client's first block, with literals, and the one that it repeats then, with indices alone."""
    encoder = Encoder()
    return encoder.encode(REQUEST), encoder.encode(REQUEST)


def test_third_connection_of_a_kind_decodes_nothing():
    common, blocks = CommonBlocks(), first_blocks()
    for decoder in decoders(common, 3):
        for block_ in blocks:
            assert decoder.request(block_).headers == REQUEST
    fourth, fifth = decoders(common, 2)
    for block_ in (*blocks, blocks[1]):
        assert fourth.request(block_) is fifth.request(block_)
    assert fourth.cached_blocks == fourth.passed_fields == 0, "it has no state of its own"
    assert fourth.table_entries == fifth.table_entries > 0


def test_connections_share_blocks_that_were_empty_at_first():
    common = CommonBlocks()
    wire = PREFACE + settings_frame([]) + request()
    for _ in range(3):
        ServerConnection(H2Limits(), 0.0, common).receive(wire, 0.0)
    assert len(common) == 1


def test_connection_that_leaves_the_common_blocks_keeps_its_table():
    common, blocks = CommonBlocks(), first_blocks()
    for decoder in decoders(common, 3):
        for block_ in blocks:
            decoder.request(block_)
    encoder = Encoder()
    (decoder,) = decoders(common, 1)
    for number in range(5):
        fields = (*REQUEST, (b"x", b"%d" % number)) if number > 1 else REQUEST
        assert decoder.request(encoder.encode(fields)).headers == fields
    decoder.fields(encoder.encode([(b"y", b"1")]))
    assert decoder.request(encoder.encode([*REQUEST, (b"y", b"1")])).headers[-1] == (b"y", b"1")


def test_malformed_block_and_table_of_another_size_are_not_shared():
    common = CommonBlocks()
    for decoder in decoders(common, 3):
        assert decoder.request(block(((b":method", b"GET"),))).malformed
    for decoder in decoders(common, 3):
        decoder.request(b"\x3f\x45" + first_blocks()[0])
    for decoder in decoders(common, 3):
        decoder.limit_table(100)
        decoder.request(b"\x3f\x45" + first_blocks()[0])
    assert len(common) == 0


def test_common_blocks_are_bounded():
    common = CommonBlocks()
    most = 0
    for number in range(2000):
        for decoder in decoders(common, 3):
            for _ in range(2):
                assert decoder.request(block((*REQUEST, (b"x", b"%d" % number)))).headers[-1] == (b"x", b"%d" % number)
            most = max(most, len(common))
    assert 0 < most <= 256
    for decoder in decoders(common, 3):
        decoder.request(block((*REQUEST, (b"x", b"v" * 2000))))
    assert len(common) <= 256


@given(rounds=st.lists(st.tuples(st.integers(0, _CONNECTIONS - 1), st.integers(0, 4)), max_size=60))
def test_sharing_never_changes_the_decoded_fields(rounds):
    common = CommonBlocks()
    ours = decoders(common, _CONNECTIONS)
    theirs = [Decoder() for _ in ours]
    encoders = [Encoder() for _ in ours]
    for at, choice in rounds:
        if choice == 4:
            # The client ends the connection and opens another one.
            ours[at], theirs[at], encoders[at] = decoders(common, 1)[0], Decoder(), Encoder()
            continue
        fields = REQUEST if choice < 2 else (*REQUEST, (b"x", b"%d" % choice))
        data = encoders[at].encode(fields)
        expected = tuple(tuple(field) for field in theirs[at].decode(data, raw=True))
        if choice == 3:
            assert ours[at].fields(data) == expected
        else:
            assert ours[at].request(data).headers == expected
        assert ours[at].table_entries == len(theirs[at].header_table.dynamic_entries)
