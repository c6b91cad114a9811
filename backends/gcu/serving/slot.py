"""`Slot`: a stream, and device buffers for one batch: merge, run, split."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy.typing as npt

from backends.api.batch import BatchItem
from backends.gcu.runtime import Device, DeviceBuffer, Direction, Engine, StatusError, Stream, StreamTimeout
from backends.gcu.runtime.card import Lane
from backends.gcu.serving.sample_layout import SampleLayout
from backends.gcu.timing import copy_time_s

Array = npt.NDArray[Any]


class Slot:
    """Confined to: whoever borrowed it.

    The three steps only queue work; host memory belongs to the stream until `finish`, or `drain` after a failure, has returned.
    """

    def __init__(self, device: Device, engine: Engine, layout: SampleLayout, *, moves_bytes: bool = True) -> None:
        """Takes a stream and buffers of `device`.

        Args:
            device: Where.
            engine: What runs on it.
            layout: Of the tensors.
            moves_bytes: False: copies take their time on the card and are counted, but nothing is moved, and all answers are the same
                zeros. For an engine that computes nothing: a card's copies cost its host no time, so a simulated one's should not either.

        Raises:
            StatusError: the card has not so much memory, or no more streams.
        """
        self._engine = engine
        self._layout = layout
        self._moves_bytes = moves_bytes
        self._stream: Stream = device.create_stream()
        self._inputs = _buffers(device, [tensor.sample_bytes for tensor in layout.inputs], layout.capacity)
        self._outputs = _buffers(device, [tensor.sample_bytes for tensor in layout.outputs], layout.capacity)

    def merge(self, items: Sequence[BatchItem]) -> int:
        """Copies the inputs of all `items` to the device, one behind the other.

        Returns:
            How many samples they have together.

        Raises:
            InvalidRequest: an item lacks an input, or bytes of it.
            StatusError: the device cannot be used.
        """
        for tensor, buffer in zip(self._layout.inputs, self._inputs, strict=True):
            at = 0
            for item in items:
                block = self._layout.block(item, tensor)
                if block.nbytes and self._moves_bytes:
                    self._stream.copy_to_device(block, buffer, at)
                elif block.nbytes:
                    self._model_copy(Direction.TO_DEVICE, block.nbytes, buffer)
                at += block.nbytes
        return sum(self._layout.samples(item) for item in items)

    def run(self, samples: int) -> "Future[None]":
        """Runs the engine on the first `samples` samples; it chooses the compiled batch, and fills it up with zeros.

        Raises:
            StatusError: the engine cannot be used.
        """
        return self._engine.run_with_batch(samples, self._inputs, self._outputs, self._stream)

    def split(self, items: Sequence[BatchItem]) -> list[Mapping[str, Array]]:
        """Copies to the host what each of `items` wants, into memory of its own.

        Raises:
            StatusError: the device cannot be used.
        """
        answers: list[Mapping[str, Array]] = []
        first = 0
        for item in items:
            answer = {}
            for name in item.output_names:
                output = self._layout.output(name)
                buffer = self._outputs[output.index]
                answer[name] = self._layout.answer(item, output) if self._moves_bytes else self._layout.zeros(item, output)
                size = answer[name].nbytes
                if size and self._moves_bytes:
                    self._stream.copy_to_host(buffer, answer[name], first * output.sample_bytes)
                elif size:
                    self._model_copy(Direction.TO_HOST, size, buffer)
            answers.append(answer)
            first += self._layout.samples(item)
        return answers

    def finish(self, timeout_s: float | None) -> None:
        """Returns when all of it is done.

        Raises:
            StreamTimeout: it is not in that time; host memory is still in use.
            StatusError: what failed of it.
        """
        self._stream.synchronize(timeout_s)

    def drain(self, timeout_s: float | None) -> bool:
        """Waits after a failure for what was queued already; False: it has not ended in that time, and the stream must be closed."""
        try:
            self._stream.synchronize(timeout_s)
        except StreamTimeout:
            return False
        except StatusError:  # the failure that the caller knows already
            return True
        return True

    def _model_copy(self, direction: Direction, size_bytes: int, buffer: DeviceBuffer) -> None:
        card = self._stream.card
        copy_s = copy_time_s(card.hardware, size_bytes)

        def copy(lane: Lane, queued_ns: int, _: Callable[[], bool]) -> None:
            card.copy(direction, size_bytes, copy_s, lane, queued_ns)

        self._stream.submit(copy, [buffer])


def _buffers(device: Device, sample_bytes: Sequence[int], samples: int) -> list[DeviceBuffer]:
    """One for each tensor; of a tensor without elements, the smallest there is."""
    return [device.allocate(max(1, size * samples)) for size in sample_bytes]
