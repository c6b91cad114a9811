"""A thread's responses reach the event loop in order and bounded, and every wait ends."""

import asyncio
import threading

import numpy as np

from stoker.server.engine.response_stream import ResponseStream


def outputs(value: int):
    return {"y": np.array([value])}


def test_responses_arrive_in_order_and_end_with_the_stream():
    async def main():
        stream = ResponseStream(asyncio.get_running_loop(), 4)
        work = asyncio.to_thread(lambda: [stream.put(outputs(i)) for i in range(20)])
        running = asyncio.ensure_future(work)
        running.add_done_callback(lambda _: stream.end())
        found = [int(each["y"][0]) async for each in stream]
        assert found == list(range(20))
        assert await running == [True] * 20

    asyncio.run(main())


def test_producer_waits_for_unread_responses_and_stops_on_cancellation():
    async def main():
        stream = ResponseStream(asyncio.get_running_loop(), 2)
        given: list[bool] = []
        full = threading.Event()

        def produce():
            for i in range(5):
                if i == 2:
                    full.set()
                given.append(stream.put(outputs(i)))
                if not given[-1]:
                    return

        running = asyncio.ensure_future(asyncio.to_thread(produce))
        await asyncio.to_thread(full.wait, 10)
        assert given == [True, True]
        stream.close()
        await running
        assert given == [True, True, False]

    asyncio.run(main())


def test_closed_loop_ends_the_producer():
    loop = asyncio.new_event_loop()
    stream = ResponseStream(loop, 2)
    loop.close()
    assert stream.put(outputs(1)) is False
