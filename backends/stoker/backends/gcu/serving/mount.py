"""`Mount`: the resources of one instance on a card: clusters, an engine, and a `Slot` (stream and buffers) for each batch in flight."""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.api.batch import Share
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime import Device, DeviceBuffer, Direction, Engine, GcuSystem, StatusError, Stream, StreamTimeout
from stoker.backends.gcu.runtime.card import Lane
from stoker.backends.gcu.serving.placement import Placement
from stoker.backends.gcu.serving.sample_layout import SampleLayout, ServedOutput
from stoker.backends.gcu.timing import copy_time_s

Array = npt.NDArray[Any]

#: Pieces of a batch with at most this average size in bytes are concatenated on the host and copied at once. To concatenate such a piece
#: takes about as long as one more copy request (`stoker.backends.gcu.timing.COPY_LATENCY_S`).
SMALL_BYTES = 1 << 17


class Slot:
    """Confined to: the thread that borrowed it.

    `merge`, `run` and `split` only queue work. The stream uses host memory until `finish`, or `drain` after a failure, has returned.
    """

    def __init__(self, device: Device, engine: Engine, layout: SampleLayout, *, moves_bytes: bool = True) -> None:
        """Creates a stream and buffers on `device`.

        Args:
            device: The device.
            engine: The engine that runs on it.
            layout: The layout of the tensors.
            moves_bytes: False: copies take modelled time and are counted, but no bytes are moved, and all responses are zeros. This suits
                an engine that computes nothing: copies of a real card take no time of the host either.

        Raises:
            StatusError: the card has too little free memory, or its maximum number of streams.
        """
        self._engine = engine
        self._layout = layout
        self._moves_bytes = moves_bytes
        self._stream: Stream = device.create_stream()
        self._inputs = _buffers(device, [tensor.sample_bytes for tensor in layout.inputs], layout.capacity)
        self._outputs = _buffers(device, [tensor.sample_bytes for tensor in layout.outputs], layout.capacity)

    def merge(self, items: Sequence[Share]) -> int:
        """Copies the inputs of all `items` to the device, one after the other.

        Returns:
            The total number of samples.

        Raises:
            InvalidRequest: an item lacks an input, or an input has the wrong number of bytes.
            StatusError: the device cannot be used.
        """
        for tensor, buffer in zip(self._layout.inputs, self._inputs, strict=True):
            blocks = [self._layout.block(item, tensor) for item in items]
            if _are_small([block.nbytes for block in blocks]):
                blocks = [np.concatenate([block.reshape(-1) for block in blocks])]
            at = 0
            for block in blocks:
                self._to_device(block, buffer, at)
                at += block.nbytes
        return sum(self._layout.samples(item) for item in items)

    def run(self, samples: int) -> "Future[None]":
        """Runs the engine on the first `samples` samples. The engine chooses the compiled batch and pads it with zeros.

        Raises:
            StatusError: the engine cannot be used.
        """
        return self._engine.run_with_batch(samples, self._inputs, self._outputs, self._stream)

    def split(self, items: Sequence[Share]) -> Sequence[Mapping[str, Array]]:
        """Copies the requested outputs of each item to new memory on the host.

        Raises:
            StatusError: the device cannot be used.
        """
        counts = [self._layout.samples(item) for item in items]
        outputs: list[dict[str, Array]] = [{} for _ in items]
        for name in dict.fromkeys(name for item in items for name in item.output_names):
            wanting = [name in item.output_names for item in items]
            for outputs_of_item, part in zip(outputs, self._parts(self._layout.output(name), counts, wanting), strict=True):
                if part is not None:
                    outputs_of_item[name] = part
        return outputs

    def finish(self, timeout_s: float | None) -> None:
        """Waits until all queued work has ended.

        Raises:
            StreamTimeout: the work has not ended in that time; host memory is still in use.
            StatusError: the first failure of the work.
        """
        self._stream.synchronize(timeout_s)

    def drain(self, timeout_s: float | None) -> bool:
        """After a failure, waits for work that was already queued.

        Returns False if the work has not ended in that time; the caller must then close the stream.
        """
        try:
            self._stream.synchronize(timeout_s)
        except StreamTimeout:
            return False
        except StatusError:  # the caller already has this failure
            return True
        return True

    def _parts(self, output: ServedOutput, counts: Sequence[int], wanting: Sequence[bool]) -> Iterator[Array | None]:
        """Returns each item's part of `output`; None: the item does not request it."""
        are_small = _are_small([count * output.sample_bytes for count in counts])
        whole = self._to_host(output, 0, sum(counts)) if are_small else None
        first = 0
        for count, is_wanted in zip(counts, wanting, strict=True):
            if not is_wanted:
                yield None
            elif whole is not None:
                yield whole[first : first + count]
            else:
                yield self._to_host(output, first, count)
            first += count

    def _to_device(self, block: Array, buffer: DeviceBuffer, at: int) -> None:
        if block.nbytes and self._moves_bytes:
            self._stream.copy_to_device(block, buffer, at)
        elif block.nbytes:
            self._model_copy(Direction.TO_DEVICE, block.nbytes, buffer)

    def _to_host(self, output: ServedOutput, first: int, samples: int) -> Array:
        """Returns memory that the stream will fill with `samples` samples of `output`, from sample `first` on."""
        buffer = self._outputs[output.index]
        array = self._layout.fresh(output, samples) if self._moves_bytes else self._layout.zeros(output, samples)
        if array.nbytes and self._moves_bytes:
            self._stream.copy_to_host(buffer, array, first * output.sample_bytes)
        elif array.nbytes:
            self._model_copy(Direction.TO_HOST, array.nbytes, buffer)
        return array

    def _model_copy(self, direction: Direction, size_bytes: int, buffer: DeviceBuffer) -> None:
        card = self._stream.card
        copy_s = copy_time_s(card.hardware, size_bytes)

        def copy(lane: Lane, queued_ns: int, _: Callable[[], bool]) -> None:
            card.copy(direction, size_bytes, copy_s, lane, queued_ns)

        self._stream.submit(copy, [buffer])


class Mount:
    """Any thread may use it. No batch may begin after `close`.

    Attributes:
        device: The acquired clusters.
        engine: The executable loaded on them.
    """

    def __init__(
        self, system: GcuSystem, placement: Placement, executable: GcuExecutable, layout: SampleLayout, depth: int, *, moves_bytes: bool
    ) -> None:
        """Loads `executable` on the clusters of `placement`, with `depth` slots. For `moves_bytes` see `Slot`.

        Raises:
            StatusError: the card cannot be used, or has too little free memory. Nothing stays on the card then.
        """
        self.device = system.acquire(placement.card, placement.clusters)
        try:
            self._generation = self.device.card.generation
            self.engine = self.device.load(executable)
            self._slots: queue.SimpleQueue[Slot] = queue.SimpleQueue()
            for _ in range(depth):
                self._slots.put(Slot(self.device, self.engine, layout, moves_bytes=moves_bytes))
        except BaseException:
            self.device.release()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether its card works, and was not reset since the mount was created."""
        card = self.device.card
        return not self.device.is_released and card.failure is None and card.generation == self._generation

    @contextmanager
    def slot(self) -> Iterator[Slot]:
        """Lends a slot to the block. Waits while all slots are in use."""
        slot = self._slots.get()
        try:
            yield slot
        finally:
            self._slots.put(slot)

    def close(self) -> None:
        """Closes its streams, including hanging ones, and frees all its resources."""
        self.device.release()


def _are_small(sizes_bytes: Sequence[int]) -> bool:
    """Whether these pieces of a batch are small enough to be copied together."""
    return len(sizes_bytes) > 1 and sum(sizes_bytes) <= SMALL_BYTES * len(sizes_bytes)


def _buffers(device: Device, sample_bytes: Sequence[int], samples: int) -> list[DeviceBuffer]:
    """Allocates a buffer for each tensor, with at least one byte."""
    return [device.allocate(max(1, size * samples)) for size in sample_bytes]
