"""`PackRunner`: requests of one sequence each, of any length, share the rows of a packed model's batch.

runner = PackRunner("executable.popef", PackRunnerConfig(timeout_microseconds=1000, max_valid_num=40, dynamic_input_name="input_ids"))
outputs = runner.execute({"input_ids": ids, "token_type_ids": types})       # ids: [length]

Callers put their requests into the open pack (`packing.py`). A thread of the runner sends packs that are complete, or whose window is
over, to a `ModelRunner`; results are copied out of the batch on the device's thread, in the order of the requests.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.api.clock import Clock, SystemClock
from backends.ipu.runtime.data_desc import DataDesc
from backends.ipu.runtime.device import Device
from backends.ipu.runtime.device_manager import DeviceManager
from backends.ipu.runtime.errors import IpuRuntimeError, SessionStopped
from backends.ipu.runtime.executable import Executable, Source
from backends.ipu.runtime.inference_future import InferenceFuture, Outputs
from backends.ipu.runtime.model_runner import ModelRunner
from backends.ipu.runtime.pack_layout import PackGroup, PackLayout
from backends.ipu.runtime.pack_request import PackRequest, RequestReader
from backends.ipu.runtime.packing import Pack, Packing, Placed
from backends.ipu.runtime.packing_config import PackRunnerConfig

Array = npt.NDArray[Any]

#: Complete packs that wait for the device before callers have to.
_READY_PACKS = 4


class PackRunner:
    """A packed executable on one or several devices. Any thread may use it.

    Attributes:
        config: How it runs.
        layout: What the model takes and gives.
    """

    def __init__(
        self,
        source: Executable | Source,
        config: PackRunnerConfig | None = None,
        *,
        device: Device | None = None,
        device_manager: DeviceManager | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Loads the executable and starts it; see `ModelRunner` for the arguments.

        Raises:
            ValueError: a field of the configuration is out of range.
            PopefError: the source cannot be read, or was compiled by another version.
            IpuRuntimeError: no device is free or fits, or the executable is not packed as the configuration says.
        """
        self.config = config or PackRunnerConfig()
        self.config.check()
        executable = source if isinstance(source, Executable) else Executable(source, check_package_hash=self.config.check_package_hash)
        self.layout = PackLayout.of(executable, self.config)
        self._runner = ModelRunner(executable, self.config, device=device, device_manager=device_manager)
        self._inputs = {desc.name: desc for desc in self._runner.get_execute_inputs()}
        outputs = {desc.name: desc for desc in self._runner.get_execute_outputs()}
        self._reader = RequestReader(self.layout, self.config, self._inputs, outputs)
        self._clock = clock or SystemClock()
        self._packing: Packing[PackRequest] = Packing(
            [group.shape for group in self.layout.groups],
            self.config.algo,
            max_items=self.layout.max_valid_num,
            window_ns=self.config.timeout_microseconds * 1000,
        )
        self._ready: deque[Pack[PackRequest]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ipu-pack-runner", daemon=True)
        self._thread.start()

    def __enter__(self) -> "PackRunner":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def devices(self) -> tuple[Device, ...]:
        """What it runs on, one a copy."""
        return self._runner.devices

    @property
    def error(self) -> IpuRuntimeError | None:
        """Why it no longer runs; None while it does."""
        return self._runner.error

    def get_execute_inputs(self) -> list[DataDesc]:
        """The inputs that requests may name, as the device takes them: [rows, row length, ...]; without the one of places."""
        return [desc for desc in self._inputs.values() if desc.name != self.layout.unpack_info]

    def get_execute_outputs(self) -> list[DataDesc]:
        """The outputs that requests may name, as the device gives them: [rows, row length, ...] or [max_valid_num, ...]."""
        return self._runner.get_execute_outputs()

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
        """Queues one sequence; waits only while the device is far behind. All memory must stay as it is until the future is done.

        Raises:
            ApplicationRuntimeError: the request does not fit the model.
            SessionStopped: the runner is closed.
        """
        request = self._reader.read(inputs, outputs)
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < _READY_PACKS or self._is_closed)
            if self._is_closed:
                raise SessionStopped("the pack runner is closed")
            self._ready += self._packing.add(request, request.lengths, self._clock.now_ns())
            self._changed.notify_all()
        return request.future

    def flush(self) -> None:
        """Sends what is waiting for others; for callers who know that nothing more comes."""
        with self._changed:
            self._ready += self._packing.flush()
            self._changed.notify_all()

    def close(self) -> None:
        """Stops, fails what waits, and gives back the devices it took. May be called again."""
        with self._changed:
            self._is_closed = True
            waiting = [*self._ready, *self._packing.flush()]
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()
        for pack in waiting:
            _fail(pack, SessionStopped("the pack runner was closed before the request was sent to the device"))
        self._runner.close()

    def _run(self) -> None:
        while (pack := self._next()) is not None:
            try:
                self._runner.execute_async(self._batch(pack)).add_done_callback(self._delivery(pack))
            except Exception as error:  # noqa: BLE001 - whatever it is, the requests must end, and the next pack be tried
                _fail(pack, error)

    def _next(self) -> Pack[PackRequest] | None:
        """The next pack, once there is one; None when the runner is closed."""
        with self._changed:
            while not self._is_closed:
                now_ns = self._clock.now_ns()
                self._ready += self._packing.due(now_ns)
                if self._ready:
                    pack = self._ready.popleft()
                    self._changed.notify_all()
                    return pack
                deadline_ns = self._packing.deadline_ns
                self._changed.wait(None if deadline_ns is None else (deadline_ns - now_ns) / 1e9)
            return None

    def _batch(self, pack: Pack[PackRequest]) -> dict[str, Array]:
        """The model's inputs: zeros where no sequence is."""
        batch = {
            name: np.zeros(desc.shape, desc.numpy_data_type()) for name, desc in self._inputs.items() if not desc.popef_contains_tensor_data
        }
        for number, group in enumerate(self.layout.groups):
            flat = {name: batch[name].reshape(-1, *batch[name].shape[2:]) for name in group.names}
            for index, placed in enumerate(pack.items):
                self._fill(flat, group, placed, number, index)
        if self.layout.unpack_info:
            places = [divmod(placed.starts[0], self.layout.groups[0].shape.row_length) for placed in pack.items]
            batch[self.layout.unpack_info][: len(places)] = places
        return batch

    def _fill(self, flat: Mapping[str, Array], group: PackGroup, placed: Placed[PackRequest], number: int, index: int) -> None:
        start, length = placed.starts[number], placed.lengths[number]
        span, given = slice(start, start + length), placed.item.inputs
        for name in group.inputs:
            flat[name][span] = given[name]
        if group.mask:
            # Sequences are told apart by their numbers in the batch, from 1; 0 is no token.
            flat[group.mask][span] = np.where(given[group.mask] != 0, index + 1, 0) if group.mask in given else index + 1
        if group.positions:
            flat[group.positions][span] = given[group.positions] if group.positions in given else np.arange(length)

    def _delivery(self, pack: Pack[PackRequest]) -> Callable[[Future[Outputs]], None]:
        def deliver(batch: Future[Outputs]) -> None:
            error = batch.exception()
            if error is not None:
                _fail(pack, error)
                return
            results = batch.result()
            for number, placed in enumerate(pack.items):
                placed.item.future.set_result(placed.item.deliver(self.layout, results, placed.starts, number))

        return deliver

    # Names of PopRT 1.0.2.
    get_model_inputs = get_execute_inputs
    get_model_outputs = get_execute_outputs
    executeAsync = execute_async  # noqa: N815


def _fail(pack: Pack[PackRequest], error: BaseException) -> None:
    for placed in pack.items:
        placed.item.future.set_exception(error)
