"""The worker's side of streams: `RemoteSink` sends the responses of a decoupled model to the server, and waits for its credits."""

import threading
from collections.abc import Mapping
from typing import Any

from stoker.backends.api.response_parameters import OutputsWithParameters, check_response_parameters
from stoker.backends.worker.arrays import Array, Blocks, read_blocks, to_json
from stoker.backends.worker.batches import WorkerItem
from stoker.backends.worker.channel import Channel, ChannelClosed, Message
from stoker.backends.worker.protocol import CREDITS, RESPONSE


class RemoteSink:
    """Takes the responses of one request; see `ResponseSink`. Several threads of the model may put responses."""

    def __init__(self, channel: Channel, number: int, index: int, item: WorkerItem) -> None:
        """Sends responses as those of the request at place `index` of batch `number`."""
        self._channel = channel
        self._number = number
        self._index = index
        self._item = item
        self._credits = threading.Semaphore(CREDITS)

    def put(self, outputs: "Mapping[str, Array]") -> bool:
        self._credits.acquire()
        if self._item.is_cancelled:
            # For the next `put`, and for other threads in one.
            self._credits.release()
            return False
        blocks = Blocks()
        names = list(outputs)
        for array in outputs.values():
            blocks.add([array])
        described: dict[str, Any] = {"n": names, "b": blocks.entries}
        if isinstance(outputs, OutputsWithParameters):
            described["p"] = outputs.parameters
        meta = to_json(described)
        try:
            self._channel.send(RESPONSE, self._number, self._index, meta, blocks.size_bytes, blocks.write)
        except ChannelClosed:
            return False
        return True

    def add_credits(self, count: int) -> None:
        """The client has read `count` responses."""
        self._credits.release(count)

    def cancel(self) -> None:
        """The client wants no more: every `put`, also one that waits, returns False."""
        self._item.is_cancelled = True
        self._credits.release()


def read_response(message: Message) -> "dict[str, Array]":
    """The outputs of a RESPONSE message.

    Raises:
        ValueError, KeyError, TypeError: the message is damaged.
    """
    meta = message.meta
    outputs = dict(zip(meta["n"], read_blocks(meta["b"], message.payload), strict=True))
    return OutputsWithParameters(outputs, check_response_parameters(meta["p"])) if "p" in meta else outputs
