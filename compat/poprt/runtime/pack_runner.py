"""`PackRunner`: requests of one sequence each, of any length, share the rows of a packed model's batch.

runner = PackRunner("executable.popef", PackRunnerConfig(timeout_microseconds=1000, max_valid_num=40, dynamic_input_name="input_ids"))
outputs = runner.execute({"input_ids": ids, "token_type_ids": types})       # ids: [length]

Callers put their requests into the open pack (`packing.py`). Packs that are complete, or whose window is over (`pack_feeder.py`), run as
batches of the compiled size; results are copied out of the batch on the device's thread, in the order of the requests.
"""

import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from poprt.runtime.pack_feeder import PackFeeder, fail
from poprt.runtime.pack_layout import PackGroup, PackLayout
from poprt.runtime.pack_request import PackRequest, RequestReader
from poprt.runtime.packing import Pack, Packing, Placed
from poprt.runtime.packing_config import PackRunnerConfig
from stoker.backends.ipu.runtime.device import Device
from stoker.backends.ipu.runtime.device_manager import DeviceManager
from stoker.backends.ipu.runtime.errors import SessionStopped
from stoker.backends.ipu.runtime.executable import DataDesc, Executable, Source
from stoker.backends.ipu.runtime.inference_future import InferenceFuture, Outputs
from stoker.backends.ipu.runtime.model_runner import ModelRunner
from stoker.backends.ipu.runtime.runtime_config import RuntimeConfig

Array = npt.NDArray[Any]


class PackRunner(ModelRunner):
    """A packed executable on one or several devices. Any thread may use it.

    Attributes:
        layout: What the model takes and gives.
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
        executable = source if isinstance(source, Executable) else Executable(source, check_package_hash=config.check_package_hash)
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
        """Those, and the weights that are not compiled in."""
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
        """Queues one sequence; waits only while the device is far behind. All memory must stay as it is until the future is done.

        Raises:
            ApplicationRuntimeError: the request does not fit the model.
            SessionStopped: the runner is closed.
        """
        request = self._reader.read(inputs, outputs)
        if self._feeder is not None:
            self._feeder.add(request)
        return request.future

    def flush(self) -> None:
        """Sends what is waiting for others; for callers who know that nothing more comes."""
        if self._feeder is not None:
            self._feeder.flush()

    def close(self) -> None:
        """Stops, fails what waits, and gives back the devices it took. May be called again."""
        if self._feeder is not None:
            self._feeder.close()
        super().close()

    def run_pack(self, pack: Pack[PackRequest]) -> None:
        """Runs `pack` as one batch; each of its requests receives its end."""
        try:
            super().execute_async(self._batch(pack)).add_done_callback(self._delivery(pack))
        except Exception as error:  # noqa: BLE001 - whatever it is, the requests must end
            fail(pack, error)

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
    """Lets `runner` run packs, and holds no reference to it: a runner without references gives its devices back."""
    reference = weakref.ref(runner)

    def send(pack: Pack[PackRequest]) -> None:
        held = reference()
        if held is None:
            fail(pack, SessionStopped("nobody holds the pack runner any more"))
        else:
            held.run_pack(pack)

    return send
