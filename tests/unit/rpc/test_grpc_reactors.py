"""Streams that a reactor handles by callbacks, on the native transport and on a call with coroutines."""

import asyncio
import gzip
import zlib
from collections import deque
from typing import Any

import pytest
from h2.errors import ErrorCodes as ErrorCode

from stoker.backends.api.errors import InvalidRequest, Unavailable
from stoker.server.core.limits import Limits
from stoker.server.rpc.method import Kind, Method, ReactorCall
from stoker.server.rpc.pump import pumped
from stoker.server.rpc.status import kserve_status
from tests.fakes.fake_engine import FakeEngine, simple
from tests.fakes.grpc_peer import connected, run, serving

PATH = "/a.B/Echo"
MIB = 1 << 20


class Echo:
    """Returns each message, after `times` copies of it; `most` of them may be unsent."""

    def __init__(self, call: ReactorCall, *, most: int = 1, times: int = 1) -> None:
        self.call = call
        self.is_reading = True
        self.received_bytes = 0
        self.cancellations = 0
        self._most = most
        self._times = times
        self._unsent: deque[Any] = deque()
        self._can_write = True
        self._end: tuple[Exception | None] | None = None

    def received(self, data: bytes | memoryview) -> None:
        assert self.is_reading
        if bytes(data) == b"defect":
            raise ValueError("secret")
        self.received_bytes += len(data)
        self._unsent += [bytes(data)] * self._times
        self.is_reading = len(self._unsent) < self._most
        self._send()

    def ended(self, error: Exception | None) -> None:
        assert self._end is None
        self._end = (error,)
        self._send()

    def sent(self) -> None:
        self._can_write = True
        self._send()

    def cancel(self) -> None:
        self.cancellations += 1

    def _send(self) -> None:
        while self._unsent and self._can_write:
            data = self._unsent.popleft()
            if self._end == (None,) and not self._unsent and self.call.write_last(data):
                self._end = None
                return
            self._can_write = False
            self._can_write = self.call.write([data[:5], memoryview(data)[5:]] if len(data) > 50_000 else data)
            if not self.is_reading and len(self._unsent) < self._most:
                self.is_reading = True
                self.call.read_on()
        if self._end is not None and not self._unsent and self._can_write:
            (error,) = self._end
            if error is None:
                self.call.finish()
            else:
                self.call.fail(error)


class Join(Echo):
    """Returns all messages in one, behind the last."""

    def received(self, data: bytes | memoryview) -> None:
        self._unsent = deque([b"".join(self._unsent) + data])

    def ended(self, error: Exception | None) -> None:
        assert error is None
        data = self._unsent.popleft()
        if not self.call.write_last(data) and self.call.write(data):
            self.call.finish()

    def sent(self) -> None:
        self.call.finish()


class Streams:
    """A method whose streams are reactors of a `kind`, which it keeps."""

    def __init__(self, kind: type[Echo] = Echo, **options: Any) -> None:
        self.reactors: list[Echo] = []
        self._kind = kind
        self._options = options

    def begin(self, call: ReactorCall) -> Echo:
        self.reactors.append(self._kind(call, **self._options))
        return self.reactors[-1]

    async def handle(self, call: Any) -> None:
        await pumped(self.begin, call)

    def method(self, *, has_reactor: bool = True, most_bytes: int = 1 << 30) -> Method:
        begin = self.begin if has_reactor else None
        return Method(path=PATH, kind=Kind.BIDI, handle=self.handle, begin=begin, status=kserve_status, most_bytes=most_bytes)


@pytest.mark.parametrize("has_reactor", [True, False])
@pytest.mark.parametrize("sizes", [[], [0], [5], [20_000], [3_000_000], [1, 0, 40_000, 7, 200_000, 3]])
def test_messages_are_returned_in_their_order(has_reactor: bool, sizes: list[int]):
    async def scenario() -> None:
        streams = Streams()
        async with serving(streams.method(has_reactor=has_reactor)) as (_, port), connected(port) as peer:
            messages = [bytes([at]) * size for at, size in enumerate(sizes)]
            stream_id = peer.begin()
            await peer.send_all(stream_id, b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages))
            response = await peer.ended(stream_id)
            assert (response.messages, response.status) == (messages, ("0", ""))

    run(scenario)


@pytest.mark.parametrize("has_reactor", [True, False])
def test_messages_in_single_bytes_are_the_same(has_reactor: bool):
    async def scenario() -> None:
        async with serving(Streams().method(has_reactor=has_reactor)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            for byte in b"\0\0\0\0\3abc\0\0\0\0\0\0\0\0\0\1d":
                peer.connection.send_data(stream_id, bytes([byte]))
                peer.flush()
                await asyncio.sleep(0)
            await peer.until(lambda: len(peer.responses[stream_id].body) == 19)
            peer.connection.end_stream(stream_id)
            peer.flush()
            assert (await peer.ended(stream_id)).messages == [b"abc", b"", b"d"]

    run(scenario)


@pytest.mark.parametrize("size", [1, 16_000, 17_000])
def test_only_response_may_wait_for_the_window_of_a_client_that_has_ended(size: int):
    async def scenario() -> None:
        engine, streams = FakeEngine(simple()), Streams(kind=Join)
        async with serving(streams.method(), engine=engine) as (_, port), connected(port, window_bytes=0) as peer:
            stream_id = peer.begin()
            # In two messages, so that the end is known before the response.
            await peer.send_all(stream_id, b"\0\0\0\0\1x\0" + (size - 1).to_bytes(4, "big") + bytes(size - 1))
            await peer.until(lambda: peer.responses[stream_id].headers)
            assert engine.reserved_bytes >= size
            peer.connection.increment_flow_control_window(100_000, stream_id)
            peer.flush()
            response = await peer.ended(stream_id)
            assert (len(response.messages[0]), response.status, engine.reserved_bytes) == (size, ("0", ""), 0)

    run(scenario)


def test_stream_needs_no_task():
    async def scenario() -> None:
        async with serving(Streams().method()) as (_, port), connected(port) as peer:
            loop, made = asyncio.get_running_loop(), []

            def make(of: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
                made.append(work)
                return asyncio.Task(work, loop=of, **options)

            loop.set_task_factory(make)
            for _ in range(3):
                stream_id = peer.begin()
                for at in range(5):
                    peer.send(stream_id, b"abc")
                    peer.flush()
                    await peer.until(lambda at=at, stream_id=stream_id: len(peer.responses[stream_id].body) == 8 * (at + 1))
                peer.connection.end_stream(stream_id)
                peer.flush()
                assert (await peer.ended(stream_id)).status == ("0", "")
            assert not made

    run(scenario)


def test_very_many_messages_in_one_read_are_handled_without_recursion():
    async def scenario() -> None:
        async with serving(Streams().method()) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            await peer.send_all(stream_id, (b"\0\0\0\0\1x") * 10_000)
            assert len((await peer.ended(stream_id)).messages) == 10_000

    run(scenario)


@pytest.mark.parametrize(("name", "module"), [("gzip", gzip), ("deflate", zlib)])
def test_compression_works_in_both_directions(name: str, module: Any):
    async def scenario() -> None:
        async with serving(Streams().method()) as (_, port), connected(port) as peer:
            stream_id = peer.begin(grpc_encoding=name)
            sizes = (10, 5000, 2_000_000, 0)
            for size in sizes:
                peer.send(stream_id, module.compress(bytes(size)), flag=1)
            peer.connection.end_stream(stream_id)
            peer.flush()
            response = await peer.ended(stream_id)
            assert (response.status, response.headers["grpc-encoding"]) == (("0", ""), name)
            flags, body = [], response.body
            while body:
                flags.append(body[0])
                body = body[5 + int.from_bytes(body[1:5], "big") :]
            plain = [module.decompress(data) if flag else data for flag, data in zip(flags, response.messages, strict=True)]
            assert (flags, plain) == ([0, 1, 1, 0], [bytes(size) for size in sizes])

    run(scenario)


def test_invalid_compressed_message_ends_the_stream_after_the_responses_before_it():
    async def scenario() -> None:
        async with serving(Streams().method()) as (_, port), connected(port) as peer:
            stream_id = peer.begin(grpc_encoding="gzip")
            peer.send(stream_id, b"first")
            peer.send(stream_id, b"not gzip", flag=1)
            peer.send(stream_id, b"never")
            peer.flush()
            response = await peer.ended(stream_id)
            assert (response.messages, response.status[0]) == ([b"first"], "13")

    run(scenario)


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"\0\0\0\0\5ab", "13", "ends inside a message"),
        (b"\0\0", "13", "ends inside a message"),
        (b"\2\0\0\0\1a", "13", "compressed-flag 2"),
        (b"\0\0\0\4\1", "8", "exceeds the limit of 1024 bytes"),
        (b"\0\0\0\0\6defect", "13", ""),
        (b"\0\0\0\0\1x\0\0\0\0\6defect", "13", ""),
    ],
)
def test_invalid_messages_and_defects_end_the_stream_and_the_connection_continues(body: bytes, code: str, text: str):
    async def scenario() -> None:
        streams = Streams()
        async with serving(streams.method(most_bytes=1024)) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            await peer.send_all(stream_id, body)
            response = await peer.ended(stream_id)
            assert (response.status[0], text in response.status[1]) == (code, True)
            assert all(reactor.cancellations for reactor in streams.reactors)
            assert (await peer.call(b"more")).messages == [b"more"]

    run(scenario)


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\1x", b"\0\0\0\0\1x" * 2])
def test_reactor_may_reject_the_stream(body: bytes):
    def begin(call: ReactorCall) -> Echo:
        raise Unavailable("not now")

    async def scenario() -> None:
        streams = Streams()
        rejecting = Method(path=PATH, kind=Kind.BIDI, handle=streams.handle, begin=begin, status=kserve_status, most_bytes=100)
        async with serving(rejecting) as (_, port), connected(port) as peer:
            stream_id = peer.begin()
            await peer.send_all(stream_id, body)
            assert (await peer.ended(stream_id)).status == ("14", "not now")

    run(scenario)


def test_client_that_does_not_read_stops_the_reactor():
    async def scenario() -> None:
        engine, streams = FakeEngine(simple()), Streams(most=2)
        async with serving(streams.method(), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin()
            sending = asyncio.create_task(peer.send_all(stream_id, (b"\0" + (30_000).to_bytes(4, "big") + bytes(30_000)) * 200))
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            for _ in range(100):
                await asyncio.sleep(0)
            # Two in the client's window, one that waits for it, two in the reactor: the client may not send the rest.
            (reactor,) = streams.reactors
            assert reactor.received_bytes == 5 * 30_000
            assert not sending.done()
            assert MIB < engine.reserved_bytes < 5 * MIB
            peer.read_on()
            await sending
            response = await peer.ended(stream_id)
            assert (len(response.messages), response.status) == (200, ("0", ""))

    run(scenario)


def test_unsent_pieces_count_until_they_are_read():
    async def scenario() -> None:
        engine, streams = FakeEngine(simple()), Streams()
        async with serving(streams.method(), engine=engine) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin()
            await peer.send_all(stream_id, b"\0" + MIB.to_bytes(4, "big") + bytes(MIB))
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            assert MIB - 65_536 < engine.reserved_bytes <= MIB + 200
            peer.read_on()
            assert (await peer.ended(stream_id)).status == ("0", "")
            assert engine.reserved_bytes == 0

    run(scenario)


def test_stream_is_aborted_if_its_unsent_messages_exceed_the_budget():
    async def scenario() -> None:
        engine, streams = FakeEngine(simple(), budget_bytes=100_000), Streams(times=200)
        async with serving(streams.method(), engine=engine, limits=Limits()) as (_, port), connected(port) as peer:
            peer.reads = False
            stream_id = peer.begin()
            peer.send(stream_id, bytes(10_000))
            peer.flush()
            await peer.until(lambda: len(peer.responses[stream_id].body) == 65_535)
            engine.limit_budget(0)
            peer.connection.increment_flow_control_window(10_000, stream_id)
            peer.connection.increment_flow_control_window(10_000)
            peer.flush()
            assert (await peer.ended(stream_id)).reset_code == ErrorCode.ENHANCE_YOUR_CALM
            assert streams.reactors[0].cancellations
            assert engine.reserved_bytes == 0

    run(scenario)


@pytest.mark.parametrize("is_writing", [False, True])
def test_reset_and_deadline_cancel_the_reactor(is_writing: bool):
    async def scenario() -> None:
        streams = Streams()
        async with serving(streams.method()) as (_, port), connected(port) as peer:
            peer.reads = not is_writing
            size = 100_000 if is_writing else 3
            for metadata in ([], [("grpc-timeout", "30m")]):
                stream_id = peer.begin(PATH, metadata)
                await peer.until(lambda: True)
                body = b"\0" + size.to_bytes(4, "big") + bytes(size)
                while body:
                    await peer.until(lambda stream_id=stream_id: peer.connection.local_flow_control_window(stream_id) > 0)
                    piece = body[: min(16_384, peer.connection.local_flow_control_window(stream_id))]
                    body = body[len(piece) :]
                    peer.connection.send_data(stream_id, piece)
                    peer.flush()
                await peer.until(lambda stream_id=stream_id: peer.responses[stream_id].body)
                reactor = streams.reactors[-1]
                assert not reactor.cancellations
                if metadata:
                    peer.read_on()
                    assert (await peer.ended(stream_id)).status[0] == "4"
                else:
                    peer.connection.reset_stream(stream_id)
                    peer.flush()
                while not reactor.cancellations:  # noqa: ASYNC110 - the reactor has no event for it
                    await asyncio.sleep(0)

    run(scenario)


def test_reactor_may_end_the_stream_before_its_client():
    async def scenario() -> None:
        streams = Streams()
        async with serving(streams.method()) as (_, port), connected(port) as peer:
            for error, code in ((None, "0"), (InvalidRequest("wrong"), "3")):
                stream_id = peer.begin()
                peer.send(stream_id, b"abc")
                peer.flush()
                await peer.until(lambda stream_id=stream_id: peer.responses[stream_id].body)
                call = streams.reactors[-1].call
                if error is None:
                    call.finish()
                else:
                    call.fail(error)
                response = await peer.ended(stream_id)
                assert (response.messages, response.status[0]) == ([b"abc"], code)
                await peer.until(lambda response=response: response.reset_code == ErrorCode.NO_ERROR)

    run(scenario)
