"""Pings on connections with calls: too many end a connection, and those that measure it do not."""

from tests.fakes.grpc_peer import connected, method, run, serving

PATH = "/a.B/Echo"
KIB = 1 << 10


async def echo(data: bytes, call) -> bytes:
    return data


def test_too_frequent_pings_end_the_connection():
    async def scenario() -> None:
        async with serving(method(PATH, echo)) as (_, port), connected(port) as peer:
            assert (await peer.call(path=PATH)).status == ("0", "")
            for index in range(5):
                peer.connection.ping(bytes([index] * 8))
            peer.flush()
            await peer.until(lambda: peer.is_closed)
            assert peer.goaway is not None
            assert (peer.goaway.error_code, peer.goaway.additional_data) == (11, b"too_many_pings")

    run(scenario)


def test_pings_between_responses_are_allowed():
    async def scenario() -> None:
        async with serving(method(PATH, echo)) as (_, port), connected(port) as peer:
            for index in range(20):
                assert (await peer.call(path=PATH)).status == ("0", "")
                peer.connection.ping(bytes([index] * 8))
                peer.flush()
            assert peer.goaway is None

    run(scenario)


def test_pings_of_a_client_that_reads_a_large_response_are_allowed():
    async def large(data: bytes, call) -> bytes:
        return bytes(2048 * KIB)

    async def scenario() -> None:
        async with serving(method(PATH, large)) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"", end=True)
            peer.flush()
            response = peer.responses[stream_id]
            for index in range(16):
                # More than one window of it has come since the last ping.
                await peer.until(lambda least=128 * KIB * index: len(response.body) > least or peer.is_closed)
                peer.connection.ping(bytes([index] * 8))
                peer.flush()
            assert (await peer.ended(stream_id)).status == ("0", "")
            assert peer.goaway is None

    run(scenario)
