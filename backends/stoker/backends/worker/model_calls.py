"""The worker's side of calls to other models: `RemoteCalls` sends them to the server, and waits for the responses."""

import itertools
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.backends.api.calls import CallResponse, ModelCall, ModelControl
from stoker.backends.api.errors import ServingError, Unavailable
from stoker.backends.worker.arrays import Blocks, read_blocks, to_json
from stoker.backends.worker.batches import error_from_json
from stoker.backends.worker.channel import Channel, ChannelClosed, Message
from stoker.backends.worker.protocol import CALL, CALL_CANCEL, CALL_CREDIT, CALL_END, CONTROL, CREDIT_STEP

#: Every attribute of a call but its tensors.
_FACTS = (
    "model_name", "model_version", "request_id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout_us",
    "trace_context",
)  # fmt: skip


#: Every attribute of a `ModelControl` but its files.
_CONTROL_FACTS = ("action", "model_name", "model_version", "config_json", "unload_dependents")


def call_message(call: ModelCall) -> "tuple[bytes, Blocks]":
    """The description and the tensors of a call."""
    blocks = Blocks()
    meta: dict[str, Any] = {name: getattr(call, name) for name in _FACTS}
    meta["output_names"] = list(call.output_names)
    meta["parameters"] = dict(call.parameters)
    meta["n"] = list(call.inputs)
    for array in call.inputs.values():
        blocks.add([array])
    meta["b"] = blocks.entries
    return to_json(meta), blocks


def read_call(message: Message) -> ModelCall:
    """The call that a CALL message says.

    Raises:
        ValueError, KeyError, TypeError: the message is damaged.
    """
    meta = message.meta
    arrays = read_blocks(meta["b"], message.payload)
    return ModelCall(
        inputs=dict(zip(meta["n"], arrays, strict=True)),
        output_names=tuple(meta["output_names"]),
        parameters=meta["parameters"],
        **{name: meta[name] for name in _FACTS},
    )


def response_message(response: CallResponse) -> "tuple[bytes, Blocks]":
    """The description and the tensors of a response to a call."""
    blocks = Blocks()
    meta: dict[str, Any] = {"m": response.model_name, "v": response.model_version, "n": list(response.outputs)}
    for array in response.outputs.values():
        blocks.add([array])
    meta["b"] = blocks.entries
    if response.parameters:
        meta["p"] = dict(response.parameters)
    return to_json(meta), blocks


def control_message(control: ModelControl) -> "tuple[bytes, Blocks]":
    """The description of `control`, and its files."""
    blocks = Blocks()
    for content in control.files.values():
        blocks.add([np.frombuffer(content, np.uint8)])
    meta: dict[str, Any] = {name: getattr(control, name) for name in _CONTROL_FACTS}
    return to_json({**meta, "n": list(control.files), "b": blocks.entries}), blocks


def read_control(message: Message) -> ModelControl:
    """The control that a CONTROL message says, with copies of the files.

    Raises:
        ValueError, KeyError, TypeError: the message is damaged.
    """
    meta = message.meta
    arrays = read_blocks(meta["b"], message.payload)
    if meta["action"] not in ("ready", "load", "unload"):
        raise ValueError("the action is unknown")
    files = {name: array.tobytes() for name, array in zip(meta["n"], arrays, strict=True)}
    return ModelControl(files=files, **{name: meta[name] for name in _CONTROL_FACTS})


class RemoteCalls:
    """`ModelCalls` over a channel. May be used in any thread of the model but the one that receives messages."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Message | None]] = {}
        self._is_closed = False
        #: Whether a thread receives messages.
        self.is_serving = False

    def call(self, call: ModelCall) -> "Iterator[CallResponse]":
        number = next(self._numbers)
        arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._waiting[number] = arrived
        is_over = False
        try:
            described, blocks = call_message(call)
            if self._is_closed:
                raise ChannelClosed("the channel is closed")
            self._channel.send(CALL, number, 0, described, blocks.size_bytes, blocks.write)
            unreported = 0
            while True:
                message = arrived.get()
                if message is None:
                    is_over = True
                    raise ChannelClosed("the channel is closed")
                if message.kind == CALL_END:
                    is_over = True
                    if message.meta:
                        raise error_from_json(message.meta)
                    return
                meta = message.meta
                outputs = dict(zip(meta["n"], read_blocks(meta["b"], message.payload), strict=True))
                yield CallResponse(model_name=meta["m"], model_version=meta["v"], outputs=outputs, parameters=meta.get("p", {}))
                del message, outputs
                unreported += 1
                if unreported == CREDIT_STEP:
                    self._channel.send(CALL_CREDIT, number, unreported)
                    unreported = 0
        except ChannelClosed:
            is_over = True
            raise Unavailable("the server has closed the channel of this worker process") from None
        finally:
            self._waiting.pop(number, None)
            if not is_over:
                self._cancel(number)

    def control(self, control: ModelControl) -> bool:
        number = next(self._numbers)
        arrived: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._waiting[number] = arrived
        try:
            if not self.is_serving:
                raise Unavailable("a model can load, unload and look up models once it is loaded itself, and until it is unloaded")
            described, blocks = control_message(control)
            self._channel.send(CONTROL, number, 0, described, blocks.size_bytes, blocks.write)
            message = arrived.get()
            if message is None:
                raise ChannelClosed("the channel is closed")
        except ChannelClosed:
            raise Unavailable("the server has closed the channel of this worker process") from None
        finally:
            self._waiting.pop(number, None)
        if message.meta:
            raise error_from_json(message.meta)
        return message.index == 1

    def arrived(self, message: Message) -> None:
        """Takes a message for a call; called in the thread that receives messages."""
        waiting = self._waiting.get(message.number)
        if waiting is not None:
            waiting.put(message)

    def close(self) -> None:
        """Ends all calls that wait: the server is gone."""
        self._is_closed = True
        self.is_serving = False
        for waiting in list(self._waiting.values()):
            waiting.put(None)

    def _cancel(self, number: int) -> None:
        try:
            self._channel.send(CALL_CANCEL, number)
        except (OSError, ServingError, ChannelClosed):
            return
