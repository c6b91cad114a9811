"""Bodies arrive completely through any windows on both sides, and neither a slow client nor a slow server causes a deadlock."""

import random

import h2.settings
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.net.http2.events import DataReceived
from stoker.server.net.http2.headers import encode_block
from stoker.server.net.http2.limits import H2Limits
from tests.fakes.h2_exchange import REQUEST, Exchange

HEAD = encode_block([(b":status", b"200")])
TRAILERS = encode_block([(b"grpc-status", b"0")])
_MOST_ROUNDS = 5000


class SlowCalls:
    """Calls whose two ends send and read random amounts."""

    def __init__(self, seed: int, counts: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.randrange
        limits = H2Limits(
            stream_window_bytes=pick(200, 20_000),
            connection_window_bytes=65_535 + pick(5000),
            sent_frame_bytes=pick(100, 20_000),
            output_bytes=pick(1, 20_000),
            control_burst=1_000_000,
        )
        client_window = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: pick(200, 20_000)}
        self.exchange = Exchange(limits, settings=client_window, auto_consume=False)
        self.exchange.settle()
        streams = range(1, 2 * counts, 2)
        self.bodies = {stream_id: self.random.randbytes(pick(60_000)) for stream_id in streams}
        self.responses = {stream_id: self.random.randbytes(pick(60_000)) for stream_id in streams}
        self.sent = dict.fromkeys(streams, 0)
        self.answered = dict.fromkeys(streams, 0)
        self.unconsumed = dict.fromkeys(streams, 0)
        self.seen_events = 0
        self.unread = dict.fromkeys(streams, 0)
        self.read = dict.fromkeys(streams, 0)
        for stream_id in streams:
            self.exchange.client.send_headers(stream_id, REQUEST)

    def run(self) -> None:
        """Runs both ends until everything has arrived."""
        server = self.exchange.server
        self.exchange.settle()
        for stream_id in self.bodies:
            server.send_headers(stream_id, HEAD)
        waiting: set[int] = set()
        for _ in range(_MOST_ROUNDS):
            if not server.open_streams and all(self.exchange.bodies[each] == response for each, response in self.responses.items()):
                return
            for stream_id in self.bodies:
                self._upload(stream_id)
                if stream_id not in waiting and self.answered[stream_id] <= len(self.responses[stream_id]) and self._answer(stream_id):
                    waiting.add(stream_id)
            self.exchange.settle(most_bytes=self.random.choice([100, 10_000]))
            waiting.difference_update(server.take_drained())
            self._consume()
        raise AssertionError(f"it stands still: {self.sent} sent, {self.answered} answered, {server.open_streams} streams open")

    def _upload(self, stream_id: int) -> None:
        client, body = self.exchange.client, self.bodies[stream_id]
        left = len(body) - self.sent[stream_id]
        if self.sent[stream_id] > len(body):
            return
        receive_buffer = min(
            client.local_flow_control_window(stream_id), client.max_outbound_frame_size, left, self.random.randrange(1, 30_000)
        )
        if left and receive_buffer <= 0:
            return
        start = self.sent[stream_id]
        client.send_data(stream_id, body[start : start + receive_buffer], end_stream=receive_buffer == left)
        # Past the end: the request is complete.
        self.sent[stream_id] += receive_buffer + (receive_buffer == left)

    def _answer(self, stream_id: int) -> int:
        """Sends a part of a response; returns the waiting bytes."""
        response, start = self.responses[stream_id], self.answered[stream_id]
        end = min(len(response), start + self.random.randrange(1, 40_000))
        waits = self.exchange.server.send_data(stream_id, response[start:end])
        self.answered[stream_id] = end
        if end == len(response):
            self.exchange.server.send_headers(stream_id, TRAILERS, end_stream=True)
            self.answered[stream_id] += 1
        return waits

    def _consume(self) -> None:
        """Reads a random part of the received bytes, on both sides."""
        for event in self.exchange.events[self.seen_events :]:
            if isinstance(event, DataReceived):
                self.unconsumed[event.stream_id] += len(event.data)
        self.seen_events = len(self.exchange.events)
        for stream_id, count in self.unconsumed.items():
            taken = self.random.randrange(count + 1) if self.random.random() < 0.5 else count
            self.exchange.server.consumed(stream_id, taken)
            self.unconsumed[stream_id] -= taken
            unread = len(self.exchange.bodies[stream_id]) - self.read[stream_id]
            if unread:
                self.exchange.client.acknowledge_received_data(unread, stream_id)
                self.read[stream_id] += unread


@given(seed=st.integers(0, 1 << 32), counts=st.integers(1, 5))
def test_bodies_pass_whole_through_any_windows(seed, counts):
    calls = SlowCalls(seed, counts)
    calls.run()
    for stream_id, body in calls.bodies.items():
        assert calls.exchange.body_received(stream_id) == body
        assert calls.exchange.bodies[stream_id] == calls.responses[stream_id]
