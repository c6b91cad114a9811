"""The process of `run_in_child`: calls one function, and sends its result."""

import contextlib
import importlib
import os
import socket

from stoker.backends.worker.arrays import to_json
from stoker.backends.worker.batches import error_to_json
from stoker.backends.worker.channel import Channel, ChannelError
from stoker.backends.worker.protocol import FAILED, LOADED


def main(descriptor: int) -> None:
    """Receives the function and its argument from the socket `descriptor`, and sends what it returns or raises."""
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ChannelError):
        call = channel.receive().meta
        module, _, name = call["function"].partition(":")
        try:
            kind, result = LOADED, to_json(getattr(importlib.import_module(module), name)(call["payload"]))
        except BaseException as error:  # noqa: BLE001 - whatever the model's code raises is the result
            kind, result = FAILED, to_json(error_to_json(error))
        channel.send(kind, meta=result)
    os._exit(0)
