"""`Device`: clusters of a card that one caller has acquired, with the streams, buffers and engines on them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stoker.backends.gcu.executable import ExecutableError, read_executable
from stoker.backends.gcu.program import GcuExecutable
from stoker.backends.gcu.runtime.card import Card, CardFigures, Lane, ProcessMark
from stoker.backends.gcu.runtime.device_buffer import DeviceBlock, DeviceBuffer, first_bytes, readable_bytes, writable_bytes
from stoker.backends.gcu.runtime.engine import Engine
from stoker.backends.gcu.runtime.errors import Status, StatusError
from stoker.backends.gcu.runtime.stream import Stream, copy_in, copy_out
from stoker.backends.simulated.numerics import Numerics


def open_executable(path: str | Path) -> GcuExecutable:
    """Reads the executable file at `path`.

    Raises:
        StatusError: there is no such file, or it is damaged.
    """
    if not Path(path).is_file():
        raise StatusError(Status.TIF_LOAD_NON_EXIST_FILE, f"there is no file '{path}'")
    try:
        return read_executable(path)
    except ExecutableError as error:
        raise StatusError(Status.TIF_EXECUTABLE_CRC_VERIFY_FAILED, str(error)) from error


_Made = TypeVar("_Made", Stream, DeviceBuffer, Engine)


class Owner(Protocol):
    """The part of a `GcuSystem` that its devices use."""

    @property
    def process(self) -> ProcessMark:
        """The process that made the system."""

    @property
    def numerics(self) -> Numerics:
        """Whether this host computes."""

    @property
    def host_threads(self) -> int:
        """Threads of this host that one run may use."""

    def next_number(self) -> int:
        """Returns a number for a stream."""

    def forget(self, device: "Device") -> None:
        """Removes a released device. The device calls it."""


class Device:
    """Any thread may use it. `release` frees all its streams, buffers and engines.

    Attributes:
        card: The card of its clusters.
        clusters: Numbers of its clusters, ascending.
        is_exclusive: Whether no other device may use these clusters.
    """

    def __init__(self, system: Owner, card: Card, clusters: tuple[int, ...], *, is_exclusive: bool) -> None:
        """Only `GcuSystem.acquire` calls this."""
        self.system = system
        self.card = card
        self.clusters = clusters
        self.is_exclusive = is_exclusive
        self._lock = threading.Lock()
        self._is_released = False
        self._streams: set[Stream] = set()
        self._buffers: set[DeviceBuffer] = set()
        self._engines: set[Engine] = set()

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = ", released" if self._is_released else ""
        return f"<Device card {self.card.id} ({self.card.hardware.name}, simulated), clusters {list(self.clusters)}{state}>"

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._is_released

    @property
    def figures(self) -> CardFigures:
        """The counters of its card, for all users of the card."""
        return self.card.figures

    @property
    def hbm_used_bytes(self) -> int:
        """The memory that engines and buffers of this device take."""
        with self._lock:
            return sum(each.size_bytes for each in self._buffers) + sum(each.hbm_bytes for each in self._engines)

    def create_stream(self) -> Stream:
        """Returns a new stream.

        Raises:
            StatusError: the card has its maximum number of streams, or the device cannot be used.
        """
        self.check()
        stream = Stream(self.system.next_number(), self.card, self.check, self._forget_stream)
        if not self._keep(self._streams, stream):
            stream.close()
        return stream

    def allocate(self, size_bytes: int) -> DeviceBuffer:
        """Returns a new buffer of zeros.

        Raises:
            OutOfDeviceMemory: the card has too little free memory.
            StatusError: the size is not positive, or the device cannot be used.
        """
        self.check()
        buffer = DeviceBuffer(self.card, size_bytes, self._forget_buffer)
        if not self._keep(self._buffers, buffer):
            buffer.discard()
        return buffer

    def load(self, executable: GcuExecutable | str | Path, clusters: Sequence[int] | None = None) -> Engine:
        """Returns an engine for `executable`, or for the `model.exec` file at that path.

        Args:
            executable: An executable, or the path of its file.
            clusters: Clusters of the device to run on; None: all.

        Raises:
            OutOfDeviceMemory: weights and workspace do not fit into the free memory.
            StatusError: the file cannot be read, it was compiled for other hardware, its graphs cannot be computed, or the
                device cannot be used.
        """
        self.check()
        if isinstance(executable, str | Path):
            executable = open_executable(executable)
        engine = Engine(
            executable,
            self,
            self.clusters if clusters is None else clusters,
            self._forget_engine,
            numerics=self.system.numerics,
            host_threads=self.system.host_threads,
        )
        if not self._keep(self._engines, engine):
            engine.unload()
        return engine

    def copy_to_device(self, host: Any, buffer: DeviceBlock, offset: int = 0, size: int | None = None) -> None:
        """Copies like `Stream.copy_to_device`, but outside any stream; returns when the copy has ended in modelled time."""
        source = first_bytes(readable_bytes(host), size)
        self._copy(buffer, offset, source.nbytes, lambda lane, now_ns: copy_in(self.card, source, buffer, offset, lane, now_ns))

    def copy_to_host(self, buffer: DeviceBlock, host: Any, offset: int = 0, size: int | None = None) -> None:
        """Copies like `Stream.copy_to_host`, but outside any stream; returns when the copy has ended in modelled time."""
        target = first_bytes(writable_bytes(host), size)
        self._copy(buffer, offset, target.nbytes, lambda lane, now_ns: copy_out(self.card, buffer, target, offset, lane, now_ns))

    def check(self) -> None:
        """Raises `StatusError` if the device was released, its card is broken, or the caller is a forked process."""
        self.system.process.check()
        if self._is_released:
            raise StatusError(Status.TIF_NOT_INITIALIZED, f"{self!r} cannot be used any more")
        self.card.reject_if_broken()

    def release(self) -> None:
        """Closes its streams, unloads its engines, frees its buffers and releases its clusters. A second call does nothing."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            streams, engines, buffers = tuple(self._streams), tuple(self._engines), tuple(self._buffers)
        if not self.system.process.is_here:
            return  # threads and locks of this device belong to another process
        with self.card.turns.condition:
            self.card.turns.condition.notify_all()
        for stream in streams:
            stream.close()
        for engine in engines:
            engine.discard()
        for buffer in buffers:
            buffer.discard()
        self.system.forget(self)

    def _copy(self, buffer: DeviceBlock, offset: int, size_bytes: int, copy: Callable[[Lane, int], None]) -> None:
        self.check()
        buffer.check(self.card, offset, size_bytes, "copy")
        lane = Lane()
        buffer.pin()
        try:
            copy(lane, self.card.pacer.clock.now_ns())
        finally:
            buffer.unpin()
        self.card.pacer.wait_until(lane.ready_at_ns, self.card.turns.condition, lambda: self._is_released)

    def _keep(self, kept: set[_Made], made: _Made) -> bool:
        """Registers `made` for `release`. Returns False if the device was released in the meantime."""
        with self._lock:
            if not self._is_released:
                kept.add(made)
            return not self._is_released

    def _forget_stream(self, stream: Stream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _forget_buffer(self, buffer: DeviceBuffer) -> None:
        with self._lock:
            self._buffers.discard(buffer)

    def _forget_engine(self, engine: Engine) -> None:
        with self._lock:
            self._engines.discard(engine)
