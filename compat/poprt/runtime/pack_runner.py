"""`PackRunner`: requests of one sequence each, of any length, share the rows of a packed model's batch.

runner = PackRunner("executable.popef", PackRunnerConfig(timeout_microseconds=1000, max_valid_num=40, dynamic_input_name="input_ids"))
outputs = runner.execute({"input_ids": ids, "token_type_ids": types})       # ids: [length]

Callers put their requests into the open pack (`packing.py`). Packs that are complete, or whose window is over, run as
batches of the compiled size; results are copied out of the batch on the device's thread, in the order of the requests.

`PackFeeder`: the open pack, and the one thread that waits for its window to end while there is one. Packs go to the device in the order in
which they were completed, on whichever thread completed them or found the window over.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from poprt.runtime.pack_layout import PackGroup, PackLayout, PackRequest, RequestReader
from poprt.runtime.packing import Pack, Packing, PackRunnerConfig, Placed
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.errors import SessionStopped
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Outputs
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig
from stoker.backends.simulated.pacing import WaitableClock


class PackFeeder:
    """Collects requests into packs and sends complete packs to the device. Thread-safe."""

    def __init__(self, packing: Packing[PackRequest], clock: WaitableClock, send: Callable[[Pack[PackRequest]], None]) -> None:
        """Starts without requests.

        Args:
            packing: Forms the packs.
            clock: Source of the current time.
            send: Runs a pack, and tells each of its requests its end; it does not raise, and may wait for the device.
        """
        self._packing = packing
        self._clock = clock
        self._send = send
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._ready: deque[Pack[PackRequest]] = deque()
        self._is_closed = False
        self._watcher: threading.Thread | None = None

    def add(self, request: PackRequest) -> None:
        """Adds a request, and runs the packs that it completes.

        Raises:
            SessionStopped: the feeder is closed.
        """
        with self._changed:
            if self._is_closed:
                raise SessionStopped("the pack runner is closed")
            self._ready += self._packing.add(request, request.lengths, self._clock.now_ns())
            if self._watcher is not None:
                self._changed.notify_all()
            elif self._packing.deadline_ns is not None:
                self._watcher = threading.Thread(target=self._watch, name="ipu-pack-window", daemon=True)
                self._watcher.start()
        self._drain()

    def flush(self) -> None:
        """Runs the open pack now."""
        with self._changed:
            self._ready += self._packing.flush()
            self._changed.notify_all()
        self._drain()

    def close(self) -> None:
        """Fails requests that were not sent to the device yet. May be called again."""
        with self._changed:
            self._is_closed = True
            waiting = [*self._ready, *self._packing.flush()]
            self._ready.clear()
            self._changed.notify_all()
            watcher = self._watcher
        for pack in waiting:
            fail(pack, SessionStopped("the pack runner was closed before the request was sent to the device"))
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join()

    def _watch(self) -> None:
        while True:
            with self._changed:
                while (due_ns := self._packing.deadline_ns) is not None and due_ns > self._clock.now_ns():
                    self._clock.wait(self._changed, due_ns)
                if due_ns is None:  # nothing waits, also because this is closed
                    self._watcher = None
                    return
                self._ready += self._packing.due(self._clock.now_ns())
            self._drain()

    def _drain(self) -> None:
        """Runs the complete packs, one thread at a time, to keep their order."""
        while self._ready:
            with self._sending:
                with self._changed:
                    pack = self._ready.popleft() if self._ready else None
                if pack is not None:
                    self._send(pack)


def fail(pack: Pack[PackRequest], error: BaseException) -> None:
    """Ends all requests of `pack` with `error`."""
    for placed in pack.items:
        placed.item.future.set_exception(error)


Array = npt.NDArray[Any]


class PackRunner(ModelRunner):
    """Runs a packed executable on one or several devices. Thread-safe.

    Attributes:
        layout: Inputs and outputs of the model.
    """

    _feeder: PackFeeder | None = None

    def __init__(
        self,
        source: Executable | Source,
        config: RuntimeConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
    ) -> None:
        """See `ModelRunner`; `config` is a `PackRunnerConfig`.

        Raises:
            ValueError: a field of the configuration is out of range, or it is another runner's.
            ApplicationRuntimeError: the executable is not packed as the configuration says.
        """
        config = config or PackRunnerConfig()
        if not isinstance(config, PackRunnerConfig):
            raise ValueError(f"a PackRunner takes a PackRunnerConfig, not a {type(config).__name__}")
        config.check()
        executable = Executable.of(source, check_package_hash=config.check_package_hash)
        self.layout = PackLayout.of(executable, config)
        super().__init__(executable, config, device=device, device_manager=device_manager)
        self._inputs = {desc.name: desc for desc in super().get_execute_inputs()}
        outputs = {desc.name: desc for desc in self.get_execute_outputs()}
        self._reader = RequestReader(self.layout, config, self._inputs, outputs, self._waiters)
        packing: Packing[PackRequest] = Packing(
            [group.shape for group in self.layout.groups],
            config.algo,
            max_items=self.layout.max_valid_num,
            window_ns=config.timeout_microseconds * 1000,
        )
        self._feeder = PackFeeder(packing, self.devices[0].system.clock, _sender(self))

    def get_execute_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name, as the device takes them: [rows, row length, ...]; without the one of places."""
        return [desc for desc in super().get_execute_inputs() if desc.name != self.layout.unpack_info]

    def get_model_inputs(self) -> list[DataDesc]:
        """Returns the inputs of `get_execute_inputs` and the weights that are not compiled in."""
        return [desc for desc in super().get_model_inputs() if desc.name != self.layout.unpack_info]

    def execute(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> Outputs:
        """Runs one sequence and waits for it.

        Args:
            inputs: By name: [length, ...] or [1, length, ...]. The mask may be left out (all ones), and so may positions (from 0).
            outputs: Memory to write to, by name; of outputs by token the first `length` entries are written. None: allocated.

        Returns:
            The outputs by name: those of `outputs`, or all, as long as the sequence.

        Raises:
            ApplicationRuntimeError: the request does not fit the model.
            IpuRuntimeError: the device failed.
        """
        return self.execute_async(inputs, outputs).result()

    def execute_async(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None) -> InferenceFuture:
        """Queues one sequence; blocks only while the device's queue is full. Caller memory must not change until the future is done.

        Raises:
            ApplicationRuntimeError: the request does not fit the model.
            SessionStopped: the runner is closed.
        """
        request = self._reader.read(inputs, outputs)
        if self._feeder is not None:
            self._feeder.add(request)
        return request.future

    def flush(self) -> None:
        """Runs the open pack now, for callers that know that no more requests follow."""
        if self._feeder is not None:
            self._feeder.flush()

    def close(self) -> None:
        """Stops, fails pending requests, and releases the devices. May be called again."""
        if self._feeder is not None:
            self._feeder.close()
        super().close()

    def run_pack(self, pack: Pack[PackRequest]) -> None:
        """Runs `pack` as one batch; each of its requests completes with a result or an error."""
        try:
            super().execute_async(self._batch(pack)).add_done_callback(self._delivery(pack))
        except Exception as error:  # noqa: BLE001 - whatever it is, the requests must end
            fail(pack, error)

    def _batch(self, pack: Pack[PackRequest]) -> dict[str, Array]:
        """Returns the model's inputs, with zeros where there is no sequence."""
        batch = {
            name: np.zeros(desc.shape, desc.numpy_data_type()) for name, desc in self._inputs.items() if not desc.popef_contains_tensor_data
        }
        for number, group in enumerate(self.layout.groups):
            flat = {name: batch[name].reshape(-1, *batch[name].shape[2:]) for name in group.names}
            for index, placed in enumerate(pack.items):
                self._fill(flat, group, placed, number, index)
        if self.layout.unpack_info:
            positions = [divmod(placed.starts[0], self.layout.groups[0].shape.row_length) for placed in pack.items]
            batch[self.layout.unpack_info][: len(positions)] = positions
        return batch

    def _fill(self, flat: Mapping[str, Array], group: PackGroup, placed: Placed[PackRequest], number: int, index: int) -> None:
        start, length = placed.starts[number], placed.lengths[number]
        span, given = slice(start, start + length), placed.item.inputs
        for name in group.inputs:
            flat[name][span] = given[name]
        if group.mask:
            # Sequences are distinguished by their numbers in the batch, from 1; 0 is no token.
            flat[group.mask][span] = np.where(given[group.mask] != 0, index + 1, 0) if group.mask in given else index + 1
        if group.positions:
            flat[group.positions][span] = given[group.positions] if group.positions in given else np.arange(length)

    def _delivery(self, pack: Pack[PackRequest]) -> Callable[[Future[Outputs]], None]:
        def deliver(batch: Future[Outputs]) -> None:
            failure = batch.exception()
            if failure is not None:
                fail(pack, failure)
                return
            results = batch.result()
            for number, placed in enumerate(pack.items):
                try:
                    outputs = placed.item.deliver(self.layout, results, placed.starts, number)
                except Exception as error:  # noqa: BLE001 - a caller took his memory back: the others still get their responses
                    placed.item.future.set_exception(error)
                else:
                    placed.item.future.set_result(outputs)

        return deliver


def _sender(runner: PackRunner) -> Callable[[Pack[PackRequest]], None]:
    """Returns a function that runs packs on `runner` through a weak reference, so that an unused runner releases its devices."""
    reference = weakref.ref(runner)

    def send(pack: Pack[PackRequest]) -> None:
        held = reference()
        if held is None:
            fail(pack, SessionStopped("the pack runner has no references any more"))
        else:
            held.run_pack(pack)

    return send
