"""Clients that send too fast or read too slowly, on the native transport."""

import asyncio

import pytest

from stoker.server.core.limits import Limits
from stoker.server.net.http2.frames import ErrorCode
from stoker.server.rpc.method import Kind
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import connected, method, run, serving

PATH = "/a.B/Method"
MIB = 1 << 20


async def echo(data: bytes, call) -> bytes:
    return data


def test_client_that_does_not_read_a_stream_stops_the_method():
    sent = 0

    async def pour(call) -> None:
        nonlocal sent
        for _ in range(20):
            await call.send(bytes(100_000))
            sent += 1

    async def scenario() -> None:
        engine = FakeEngine(simple())
        async with serving(method(PATH, pour, Kind.SERVER_STREAM), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"", end=True)
            peer.flush()
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            # What fits no window waits with the method, not in memory.
            assert sent == 0
            peer.read_on()
            response = await peer.ended(stream_id)
            assert (len(response.messages), response.status) == (20, ("0", ""))

    run(scenario)


def test_method_that_does_not_receive_stops_the_client():
    go = asyncio.Event()

    async def late(call) -> None:
        await go.wait()
        total = 0
        while (data := await call.receive()) is not None:
            total += len(data)
        await call.send(str(total).encode())

    async def scenario() -> None:
        engine = FakeEngine(simple())
        async with serving(method(PATH, late, Kind.CLIENT_STREAM), engine=engine) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            peer.flush()
            await peer.until(lambda: peer.connection.local_flow_control_window(stream_id) > 65_535)
            sent = 0
            # Whole messages, as many as the window takes.
            while peer.connection.local_flow_control_window(stream_id) >= 16_384:
                peer.send(stream_id, bytes(16_379))
                sent += 16_379
            assert sent < 8 * MIB
            peer.connection.ping(b"12345678")
            peer.flush()
            await peer.until(lambda: peer.acks == 1)
            assert peer.connection.local_flow_control_window(stream_id) < 16_384
            go.set()
            await peer.until(lambda: peer.connection.local_flow_control_window(stream_id) >= MIB)
            assert engine.peak_bytes >= sent
            peer.connection.end_stream(stream_id)
            peer.flush()
            assert (await peer.ended(stream_id)).messages == [str(sent).encode()]
            assert engine.reserved_bytes == 0

    run(scenario)


def test_streamed_message_larger_than_the_window_arrives_complete():
    async def size(call) -> None:
        await call.send(str(len(await call.receive() or b"")).encode())

    async def scenario() -> None:
        async with serving(method(PATH, size, Kind.CLIENT_STREAM)) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            await peer.send_all(stream_id, b"\0" + (12 * MIB).to_bytes(4, "big") + bytes(12 * MIB))
            assert (await peer.ended(stream_id)).messages == [str(12 * MIB).encode()]

    run(scenario)


def test_bytes_being_received_count_against_the_budget():
    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=MIB)
        loop = asyncio.get_running_loop()
        async with serving(method(PATH, echo), engine=engine) as (server, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            await peer.send_all(stream_id, b"\0" + (2 * MIB).to_bytes(4, "big") + bytes(2 * MIB))
            await peer.until(lambda: len(engine.budget.queue) == 1)
            server.sweep(loop.time() + 11)
            response = await peer.ended(stream_id)
            assert response.status[0] == "14"
            assert "retry-after" in response.headers
            assert engine.peak_bytes <= MIB
            assert (await peer.call(path=PATH)).status == ("0", "")

    run(scenario)


def test_unread_responses_are_counted_and_bounded():
    async def scenario() -> None:
        engine, loop = FakeEngine(simple()), asyncio.get_running_loop()

        async def large(data: bytes, call) -> bytes:
            return bytes(MIB)

        limits = Limits(grpc_unflushed_bytes=4 * MIB)
        async with (
            serving(method(PATH, large, starts_inline=True), engine=engine, limits=limits) as (server, port),
            connected(port) as peer,
        ):
            peer.reads = False
            streams = []
            for _ in range(8):
                stream_id = peer.begin(PATH)
                peer.send(stream_id, b"", end=True)
                peer.flush()
                streams.append(stream_id)
            await peer.until(lambda: any(peer.responses[stream_id].is_ended for stream_id in streams))
            refused = [peer.responses[stream_id] for stream_id in streams if peer.responses[stream_id].is_ended]
            assert {response.status for response in refused} == {
                ("8", "too many bytes of responses to this connection are unread: read them first")
            }
            assert 4 * MIB - 65_536 < engine.reserved_bytes <= 6 * MIB
            # Who reads nothing for ten seconds is gone.
            server.sweep(loop.time())
            server.sweep(loop.time() + 9)
            assert not peer.is_closed
            server.sweep(loop.time() + 11)
            await peer.until(lambda: peer.is_closed)

    run(scenario)


def test_unread_response_ends_no_other_call():
    """A proxy reads its connection, but one of its clients leaves a response unread: the window of that stream stays closed."""
    go = asyncio.Event()

    async def large(data: bytes, call) -> bytes:
        return bytes(MIB)

    async def waiting(data: bytes, call) -> bytes:
        await go.wait()
        return data

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        methods = (method(PATH, large, starts_inline=True), method("/a.B/Wait", waiting))
        async with serving(*methods) as (server, port), connected(port) as peer:
            peer.connection.increment_flow_control_window(4 * MIB)
            peer.reads = False
            other_id = peer.begin("/a.B/Wait")
            peer.send(other_id, b"x", end=True)
            unread_id = peer.begin(PATH)
            peer.send(unread_id, b"", end=True)
            peer.flush()
            await peer.until(lambda: len(peer.responses[unread_id].body) == 65_535)
            server.sweep(loop.time())
            server.sweep(loop.time() + 11)
            # ENHANCE_YOUR_CALM, which gRPC clients know as RESOURCE_EXHAUSTED.
            assert (await peer.ended(unread_id)).reset_code == 11
            go.set()
            assert (await peer.ended(other_id)).status == ("0", "")
            assert peer.goaway is None

    run(scenario)


def test_trailers_of_a_stream_may_wait_longer():
    async def last(call) -> None:
        await call.receive()
        call.add_trailer("note", "sent")
        await call.send(bytes(100))
        # The method does not wait for it: it ends before its last message has left.
        pouring = asyncio.ensure_future(call.send(bytes(MIB)))
        await asyncio.sleep(0)
        pouring.cancel()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(method(PATH, last, Kind.SERVER_STREAM)) as (server, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"", end=True)
            peer.flush()
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            server.sweep(loop.time())
            server.sweep(loop.time() + 99)
            peer.read_on()
            response = await peer.ended(stream_id)
            assert (len(response.body), response.trailers["note"]) == (MIB + 110, "sent")

    run(scenario)


def test_empty_messages_count_with_their_overhead():
    async def wait(call) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=MIB)
        async with serving(method(PATH, wait, Kind.BIDI), engine=engine) as (_, port), connected(port) as peer:
            stream_id = peer.begin(PATH)
            # 250 kB on the wire; each message takes more memory than its five bytes.
            await peer.send_all(stream_id, bytes(5) * 50_000)
            assert (await peer.ended(stream_id)).status[0] == "14"
            assert engine.peak_bytes <= MIB

    run(scenario)


def test_unsent_messages_of_a_stream_count_until_they_are_read():
    async def pour(call) -> None:
        await call.send(bytes(MIB))

    async def scenario() -> None:
        engine = FakeEngine(simple())
        async with serving(method(PATH, pour, Kind.SERVER_STREAM), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"", end=True)
            peer.flush()
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            assert MIB - 65_536 < engine.reserved_bytes <= MIB + 200
            peer.read_on()
            assert (await peer.ended(stream_id)).status == ("0", "")
            assert engine.reserved_bytes == 0

    run(scenario)


@pytest.mark.parametrize("has_ended", [True, False])
def test_unread_response_at_its_deadline_is_counted_once_and_the_rest_of_the_request_refused(has_ended: bool):
    async def pour(call) -> None:
        await call.send(bytes(MIB))

    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=MIB + 1000)
        async with serving(method(PATH, pour, Kind.SERVER_STREAM), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin(PATH, [("grpc-timeout", "50m")])
            peer.send(stream_id, b"", end=has_ended)
            peer.flush()
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            held = [engine.reserved_bytes]
            while held[-1] == held[0]:
                held.append(engine.reserved_bytes)
                await asyncio.sleep(0)
            assert MIB - 65_536 < held[-1] < held[0]
            peer.read_on()
            response = await peer.ended(stream_id)
            assert response.status[0] == "4"
            if has_ended:
                assert response.reset_code is None
            else:
                await peer.until(lambda: response.reset_code == ErrorCode.NO_ERROR)

    run(scenario)


def test_stream_ends_with_a_status_if_its_message_exceeds_the_budget():
    async def pour(call) -> None:
        await call.send(bytes(2 * MIB))

    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=MIB)
        async with serving(method(PATH, pour, Kind.SERVER_STREAM), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin(PATH)
            peer.send(stream_id, b"", end=True)
            peer.flush()
            code, text = (await peer.ended(stream_id)).status
            assert (code, "no room for a response of 2097152 bytes" in text) == ("14", True)
            assert engine.reserved_bytes == 0

    run(scenario)


def test_call_ends_with_a_status_if_its_response_exceeds_the_budget():
    async def large(data: bytes, call) -> bytes:
        return bytes(2 * MIB)

    async def scenario() -> None:
        engine = FakeEngine(simple(), budget_bytes=MIB)
        async with serving(method(PATH, large), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            code, text = (await peer.call(path=PATH)).status
            assert (code, "no room for a response of 2097152 bytes" in text) == ("14", True)

    run(scenario)


def test_connections_share_the_event_loop_fairly():
    order: list[bytes] = []

    async def note(data: bytes, call) -> bytes:
        order.append(data)
        return data

    async def scenario() -> None:
        async with serving(method(PATH, note, starts_inline=True)) as (_, port), connected(port) as greedy, connected(port) as modest:
            await greedy.call(b"", path=PATH)
            await modest.call(b"", path=PATH)
            order.clear()
            streams = []
            for _ in range(90):
                streams.append(greedy.begin(PATH))
                greedy.send(streams[-1], b"greedy", end=True)
            stream_id = modest.begin(PATH)
            modest.send(stream_id, b"modest", end=True)
            greedy.flush()
            modest.flush()
            await modest.ended(stream_id)
            for each in streams:
                assert (await greedy.ended(each)).status == ("0", "")
            assert order.index(b"modest") < 90

    run(scenario)
