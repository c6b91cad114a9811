"""How the clients of the HTTP port share the budget of bytes in flight."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from stoker.server.core.byte_budget import ByteBudget
from stoker.server.core.limits import Limits
from stoker.server.net.http1.listener import HttpListener
from tests.fakes.fake_engine import FakeEngine
from tests.unit.http1.test_direct_path import Peer, binary_body, data_of, echo_engine, json_body, post, served

MIB = 1 << 20
#: A budget of which requests of up to 2 KiB are small, and a binary body that takes most of it.
MOST = 2 * MIB
PART = np.arange(300_000, dtype=np.int32)


class ShiftedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time a test may advance."""

    shift_s = 0.0

    def time(self) -> float:
        return super().time() + self.shift_s


Scenario = Callable[[Peer, FakeEngine, ShiftedLoop], Awaitable[None]]


def share(scenario: Scenario, most_request_bytes: int = 1 << 40) -> None:
    async def main() -> None:
        engine = echo_engine()
        engine.budget = ByteBudget(MOST, engine.now_ns, most_request_bytes=most_request_bytes)
        async with asyncio.timeout(30), served(engine, Limits()) as peer:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, ShiftedLoop)
            await scenario(peer, engine, loop)
        while engine.reserved_bytes:  # noqa: ASYNC110 - connections end in their own time
            await asyncio.sleep(0)
        assert engine.budget.held_bytes == 0
        assert not engine.budget._uploads

    with asyncio.Runner(loop_factory=ShiftedLoop) as runner:
        runner.run(main())


async def another(listener: HttpListener, port: int) -> Peer:
    return Peer(listener, port, *await asyncio.open_connection("127.0.0.1", port))


async def begun(peer: Peer, engine: FakeEngine, path: bytes) -> None:
    """Sends a body but for its last byte."""
    body, header = binary_body(PART)
    peer.writer.write(post(body, header, path=path)[:-1])
    while engine.reserved_bytes < len(body) - 1 - 65536:  # noqa: ASYNC110 - the bytes arrive in their own time
        await asyncio.sleep(0)


def stall(peer: Peer, loop: ShiftedLoop) -> None:
    """Lets time pass in which `peer` sends nothing."""
    for _ in range(2):
        loop.shift_s += 4.0
        peer.listener.sweep(loop.time())


@pytest.mark.parametrize("path", [b"/v2/models/echo/infer", b"/v2/models/ech%6f/infer", b"/v1/models/echo:predict"])
def test_stalled_upload_is_evicted_when_the_budget_is_full(path: bytes):
    async def scenario(slow: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        await begun(slow, engine, path)
        stall(slow, loop)
        other = await another(slow.listener, slow.port)
        body, header = binary_body(PART)
        # Small requests fit in any case.
        other.writer.write(post(json_body(1, 2)))
        assert data_of(await other.response()) == [1, 2]
        other.writer.write(post(body, header))
        status, head, text = await slow.response()
        assert (status, b"retry-after: 1" in head, b"connection: close" in head) == (503, True, True)
        assert b"this request was the slowest to arrive: try again" in text
        assert data_of(await other.response()) == PART.tolist()
        other.writer.close()

    share(scenario)


def test_large_request_waits_until_another_has_ended():
    async def scenario(first: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        await begun(first, engine, b"/v2/models/echo/infer")
        other = await another(first.listener, first.port)
        body, header = binary_body(PART)
        other.writer.write(post(body, header))
        while not len(engine.budget.queue):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        # Small requests fit in any case.
        third = await another(first.listener, first.port)
        third.writer.write(post(json_body(1, 2)))
        assert data_of(await third.response()) == [1, 2]
        first.writer.write(body[-1:])
        for peer in (first, other):
            assert data_of(await peer.response()) == PART.tolist()
        other.writer.close()
        third.writer.close()

    share(scenario)


def test_large_request_that_has_waited_for_its_time_gets_503_and_its_connection_goes_on():
    async def scenario(other: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        assert engine.budget.reserve(MOST // 2)
        body, header = binary_body(PART)
        other.writer.write(post(body, header))
        while not len(engine.budget.queue):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        loop.shift_s += 9.0
        other.listener.sweep(loop.time())
        assert len(engine.budget.queue) == 1
        loop.shift_s += 1.5
        other.listener.sweep(loop.time())
        status, head, text = await other.response()
        assert (status, b"retry-after: 1" in head, b"connection: close" in head) == (503, True, False)
        assert b"no room for %d more within 10 s: try again" % len(body) in text
        other.writer.write(post(json_body(1, 2)))
        assert data_of(await other.response()) == [1, 2]
        engine.budget.release(MOST // 2)

    share(scenario)


@pytest.mark.parametrize("ends", ["reset", "closed"])
def test_client_that_is_gone_leaves_the_queue_at_the_latest_with_its_turn(ends: str):
    async def scenario(first: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        await begun(first, engine, b"/v2/models/echo/infer")
        other = await another(first.listener, first.port)
        body, header = binary_body(PART)
        other.writer.write(post(body, header)[:200_000])
        while not len(engine.budget.queue):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        if ends == "reset":
            other.writer.transport.abort()
        else:
            other.writer.close()
        third = await another(first.listener, first.port)
        third.writer.write(post(body, header))
        first.writer.write(body[-1:])
        for peer in (first, third):
            assert data_of(await peer.response()) == PART.tolist()
        assert not len(engine.budget.queue)
        third.writer.close()

    share(scenario)


@pytest.mark.parametrize("count", [3, 5])
def test_parallel_requests_beyond_the_budget_all_get_their_response(count: int):
    async def scenario(first: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        body, header = binary_body(PART)
        peers = [first, *[await another(first.listener, first.port) for _ in range(count - 1)]]
        for peer in peers:
            peer.writer.write(post(body, header))
        for peer in peers:
            assert data_of(await peer.response()) == PART.tolist()
        for peer in peers[1:]:
            peer.writer.close()

    share(scenario)


def test_unflushed_response_is_evicted_when_the_budget_is_full():
    async def scenario(slow: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        body, header = binary_body(PART)
        # Large enough for the kernel's buffers not to take all of it.
        engine.models["echo"].function = lambda inputs: {"OUTPUT": np.zeros((1, 3 * MIB), np.int32)}
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.writer.write(post(body, header))
        while not slow.connections or not slow.connections[0].statistics().unflushed_responses:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        engine.models["echo"].function = lambda inputs: {"OUTPUT": inputs["INPUT"]}
        stall(slow, loop)
        other = await another(slow.listener, slow.port)
        other.writer.write(post(body, header))
        assert data_of(await other.response()) == PART.tolist()
        other.writer.close()

    share(scenario)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(b"/v1/models/echo:predict?format=tfs", b'{"instances": [[1, 2, 3]]}', id="TensorFlow Serving"),
        pytest.param(b"/v1/models/echo:predict?format=adlik", b'{"batch_size": 1, "inputs": {"INPUT": {"int_val": [1, 2]}}}', id="Adlik"),
        pytest.param(b"/v2/models/echo/generate", b'{"INPUT": [1, 2, 3]}', id="generate"),
    ],
)
def test_unflushed_responses_of_every_protocol_count_against_the_budget(path: bytes, body: bytes):
    async def scenario(slow: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        # Large enough for the kernel's buffers not to take all of it.
        engine.models["echo"].function = lambda inputs: {"OUTPUT": np.full((1, 3 * MIB), 1_000_000, np.int32)}
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.writer.write(post(body, path=path))
        while not slow.connections or not slow.connections[0].statistics().unflushed_responses:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert engine.reserved_bytes > 12 * MIB
        engine.models["echo"].function = lambda inputs: {"OUTPUT": inputs["INPUT"]}
        loop.shift_s = 4.0
        other = await another(slow.listener, slow.port)
        part, header = binary_body(PART)
        other.writer.write(post(part, header))
        assert data_of(await other.response()) == PART.tolist()
        assert engine.budget.evicted == 1
        other.writer.close()

    share(scenario)


@pytest.mark.parametrize("path", [b"/v2/models/echo/infer", b"/v2/models/echo/generate"])
def test_response_above_the_request_limit_is_an_error_response(path: bytes):
    async def scenario(peer: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        engine.models["echo"].function = lambda inputs: {"OUTPUT": np.full((1, MIB), 1_000_000, np.int32)}
        body, header = binary_body(np.arange(3, dtype=np.int32))
        peer.writer.write(post(body, header) if path.endswith(b"infer") else post(b'{"INPUT": [1, 2]}', path=path))
        status, _, text = await peer.response()
        assert status == 413
        assert b"more than the 1000000 that one request may take" in text

    share(scenario, most_request_bytes=1_000_000)


def test_next_request_waits_until_the_last_response_was_read():
    """Without this, responses would accumulate, and the reservation of one would be replaced by that of the next."""

    async def scenario(peer: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        body, header = binary_body(np.arange(3, dtype=np.int32))
        response = np.zeros((1, 3 * MIB), np.int32)
        engine.models["echo"].function = lambda inputs: {"OUTPUT": response}
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(post(body, header))
        while not peer.connections or not peer.connections[0].statistics().unflushed_responses:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        peer.writer.write(post(body, header))
        while not peer.connections[0].statistics().ahead_bytes:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert len(engine.requests) == 1
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(data_of(await peer.response())) == response.size
        assert len(data_of(await peer.response())) == response.size

    share(scenario)


def test_one_request_larger_than_the_budget_passes_alone():
    async def scenario(peer: Peer, engine: FakeEngine, loop: ShiftedLoop) -> None:
        array = np.arange(2 * MIB // 4 * 2, dtype=np.int32)
        body, header = binary_body(array)
        peer.writer.write(post(body, header))
        assert data_of(await peer.response()) == array.tolist()

    share(scenario)
