"""The worker's side of streams: credits, and cancellations that reach a model in any state."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from stoker.backends.api.response_parameters import OutputsWithParameters, parameters_of
from stoker.backends.worker.batches import WorkerItem
from stoker.backends.worker.channel import Channel
from stoker.backends.worker.protocol import CREDITS, RESPONSE
from stoker.backends.worker.responses import RemoteSink, read_response

OUTPUTS = {"OUT": np.arange(3, dtype=np.int16)}


class Ends:
    def __init__(self) -> None:
        self.server, end = Channel.pair()
        self.worker = Channel(end)
        self.server.set_timeout(0)
        self.item = WorkerItem({}, 1, ("OUT",))
        self.sink = RemoteSink(self.worker, 7, 0, self.item)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.server.close()
    both.worker.close()


def test_response_arrives_with_its_number(ends):
    assert ends.sink.put(OUTPUTS)
    message = ends.server.receive()
    assert (message.kind, message.number, message.index) == (RESPONSE, 7, 0)
    assert read_response(message)["OUT"].tolist() == [0, 1, 2]


def test_parameters_of_a_response_arrive(ends):
    assert ends.sink.put(OutputsWithParameters(OUTPUTS, {"index": 3}))
    outputs = read_response(ends.server.receive())
    assert parameters_of(outputs) == {"index": 3}
    assert outputs["OUT"].tolist() == [0, 1, 2]


def test_model_waits_when_the_client_has_read_nothing(ends):
    for _ in range(CREDITS):
        assert ends.sink.put(OUTPUTS)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(ends.sink.put(OUTPUTS)))
    thread.start()
    assert seen == []
    ends.sink.add_credits(1)
    thread.join(10)
    assert seen == [True]


@pytest.mark.timeout(20)
def test_every_put_after_a_cancellation_returns_false_at_once(ends):
    for _ in range(CREDITS):
        assert ends.sink.put(OUTPUTS)
    ends.sink.cancel()
    assert ends.item.is_cancelled
    assert [ends.sink.put(OUTPUTS) for _ in range(2 * CREDITS)] == [False] * 2 * CREDITS


@pytest.mark.timeout(20)
def test_cancellation_wakes_all_threads_that_wait(ends):
    for _ in range(CREDITS):
        assert ends.sink.put(OUTPUTS)
    seen: list[bool] = []
    threads = [threading.Thread(target=lambda: seen.append(ends.sink.put(OUTPUTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    ends.sink.cancel()
    for thread in threads:
        thread.join(10)
    assert seen == [False] * 4


def test_put_without_a_server_returns_false(ends):
    ends.server.close()
    assert not ends.sink.put(OUTPUTS)
