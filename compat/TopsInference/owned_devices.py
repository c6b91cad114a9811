"""Assigns devices to threads.

A thread that calls `set_device` owns those clusters: its calls use them until it releases them or owns others. All other threads use the
clusters that the main thread owns.
"""

import atexit
import concurrent.futures
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stoker.backends.gcu.runtime.card import ProcessMark
from stoker.backends.gcu.runtime.device import Device
from stoker.backends.gcu.runtime.errors import Status, StatusError, StreamTimeout
from stoker.backends.gcu.runtime.stream import Stream
from stoker.backends.gcu.runtime.system import process_system
from TopsInference.error_manager import record, recorded


class _Owners:
    """The devices of each thread; the most recent one is in use. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = ProcessMark()
        self._owned: dict[threading.Thread, list[Device]] = {}

    def add(self, device: Device) -> None:
        with self._lock:
            if not self._process.is_here:  # what the other process owns is not this one's
                self._process = ProcessMark()
                self._owned.clear()
            ended = [thread for thread in self._owned if not thread.is_alive()]
            abandoned = [each for thread in ended for each in self._owned.pop(thread)]
            self._owned.setdefault(threading.current_thread(), []).append(device)
        for each in abandoned:  # their owners cannot release them any more
            each.release()

    def remove(self, device: Device) -> bool:
        with self._lock:
            for thread, devices in self._owned.items():
                if device in devices:
                    devices.remove(device)
                    if not devices:
                        del self._owned[thread]
                    return True
            return False

    def newest(self) -> Device | None:
        with self._lock:
            for thread in (threading.current_thread(), threading.main_thread()):
                for device in reversed(self._owned.get(thread, ())):
                    if not device.is_released:
                        return device
            return None

    def release_all(self) -> None:
        with self._lock:
            devices = [each for owned in self._owned.values() for each in owned] if self._process.is_here else []
            self._owned.clear()
        for each in devices:
            each.release()


_owners = _Owners()
atexit.register(_owners.release_all)  # release what a script left open before the interpreter exits


@recorded
def set_device(card_id: int, cluster_ids: int | Sequence[int] = -1) -> Device:
    """Assigns clusters of a card to this thread, and returns the handle for `release_device`.

    Args:
        card_id: Card number, from 0.
        cluster_ids: One, several, or -1 for all.

    Raises:
        StatusError: there is no such card or cluster.
    """
    try:
        system = process_system()
    except ValueError as error:
        raise StatusError(Status.TIF_RUNTIME_PREREQUISITE_MISSING, str(error)) from error
    device = system.acquire(card_id, cluster_ids)
    _owners.add(device)
    return device


@recorded
def release_device(handle: Device) -> bool:
    """Releases a handle of `set_device` with everything that was allocated on it.

    Raises:
        StatusError: it is no such handle, or was released before.
    """
    if not isinstance(handle, Device) or not _owners.remove(handle):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{handle!r} is no device that is set: release_device takes what set_device gave, once")
    handle.release()
    return True


@contextmanager
def device(card_id: int, cluster_id: int | Sequence[int] = -1) -> Iterator[Device]:
    """Owns clusters of a card while the block runs; see `set_device`."""
    handle = set_device(card_id, cluster_id)
    try:
        yield handle
    finally:
        if not handle.is_released:
            release_device(handle)


def owned_device(purpose: str) -> Device:
    """Returns the device for this thread's calls.

    Raises:
        StatusError: neither this thread nor the main thread has one.
    """
    found = find_device()
    if found is None:
        raise StatusError(Status.TIF_NOT_INITIALIZED, f"{purpose}: no device is set; call set_device(card, clusters) first")
    return found


def find_device() -> Device | None:
    """Returns the device for this thread's calls; None if there is none."""
    return _owners.newest()


@recorded
def create_stream() -> Stream:
    """Creates a stream on this thread's device.

    Raises:
        StatusError: no device is set, or its card has as many streams as it can have.
    """
    return owned_device("create_stream").create_stream()


@recorded
def synchronize_stream(stream: Stream) -> bool:
    """Waits until all work queued on `stream` has ended.

    Raises:
        StatusError: the first failure since the last call.
    """
    checked_stream(stream, "synchronize_stream").synchronize()
    return True


@recorded
def destroy_stream(stream: Stream) -> bool:
    """Destroys `stream`; work that has not started is dropped.

    Raises:
        StatusError: it is no stream, or was destroyed before.
    """
    if checked_stream(stream, "destroy_stream").is_closed:
        raise StatusError(Status.TIF_INVALID_PARAM, f"destroy_stream: stream {stream.number} is destroyed already")
    stream.close()
    return True


def checked_stream(stream: Any, purpose: str) -> Stream:
    """Returns `stream`, a user's argument, if it is a valid stream.

    Raises:
        StatusError: it is none.
    """
    if not isinstance(stream, Stream):
        raise StatusError(Status.TIF_INVALID_PARAM, f"{purpose}: a stream from create_stream is needed, not {type(stream).__name__}")
    return stream


class PyFuture:
    """The result of a queued run. Thread-safe."""

    def __init__(self, future: "concurrent.futures.Future[list[Any]]", stream: Stream | None) -> None:
        self._future = future
        self._stream = stream

    def get(self, timeout_s: float | None = None) -> list[Any]:
        """Waits for the run and returns the outputs. After a failure is reported here, its stream accepts new work.

        Raises:
            StreamTimeout: it has not ended in that time; it goes on.
            StatusError: it failed.
        """
        try:
            return self._future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            late = StreamTimeout(f"a run has not ended in {timeout_s} s")
            record(late)
            raise late from None
        except StatusError as error:
            record(error)
            if self._stream is not None:
                self._stream.acknowledge(error)
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits like `get`, without returning the outputs."""
        self.get(timeout_s)
        return True

    def status(self) -> Status:
        """Waits for the run and returns its status."""
        try:
            self.get()
        except StatusError as error:
            return error.status
        return Status.TIF_SUCCESS

    def done(self) -> bool:
        """Returns whether the run has ended."""
        return self._future.done()
