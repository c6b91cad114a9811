"""`VendorIpus`: the runtime of real IPUs, by the vendor's packages `poprt` or `model_runtime`.

The layout of the vendor's PopEF files is not public. So config.pbtxt must declare all tensors; each load compares them with the anchors
that the vendor's runner states. Each instance has a device of its own, which the vendor's runner attaches.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stoker.backends.api.agreement import disagreements
from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import BackendFailed, ModelLoadError, ServingError, Unavailable
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.devices.metrics import MetricPage
from stoker.backends.devices.pool import DeviceCounters, Lease, LoadedExecutable
from stoker.backends.devices.runtime import DeviceRuntime
from stoker.backends.devices.vendor_package import VendorPackage
from stoker.backends.devices.vendor_pool import VendorPool
from stoker.backends.ipu.popef.messages import POPEF
from stoker.backends.ipu.popef.schema import Anchor
from stoker.backends.ipu.popef.served_types import SERVED, castable_to
from stoker.backends.ipu.serving.facts import read_name_map
from stoker.backends.ipu.serving.instance import PoplarInstance
from stoker.backends.ipu.serving.options import VendorSettings, read_vendor_parameters, vendor_parameter_violations
from stoker.backends.ipu.serving.served_graph import ServedGraph, ServedStream
from stoker.backends.ipu.vendor.failure import APPLICATION, IPU_RESET, VendorRunFailed
from stoker.backends.ipu.vendor.runner import RunnerSettings, VendorRunner

Array = npt.NDArray[Any]


class VendorIpus(DeviceRuntime[VendorPool]):
    """Runs the vendor's PopEF files."""

    is_simulated = False

    def __init__(self, settings: VendorSettings, package: VendorPackage) -> None:
        """Uses `package`, which it imports with the first model."""
        super().__init__()
        self._settings = settings
        self._package = package

    @property
    def description(self) -> str:
        return f"vendor, {self._package.description()}"

    @property
    def clock(self) -> Clock:
        return SystemClock()

    def make_pool(self) -> VendorPool:
        return VendorPool(MetricPage("stoker_ipu_", "device", is_simulated=False), "IPUs, one device for each instance", "action")

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        with files.path(model_filename).open("rb") as file:
            head = file.read(len(POPEF.magic))
        if not head:
            raise ModelLoadError(f"'{model_filename}' is empty")
        if head == POPEF.magic:
            raise ModelLoadError(
                f"'{model_filename}' is an executable of Stoker's compiler, for simulated IPUs; a real one takes a PopEF file that the "
                "vendor's compiler (PopRT) wrote"
            )
        read_name_map(files)
        return ModelFacts(inputs=None, outputs=None, notes=(f"a PopEF file of the vendor's compiler; runs by {self.description}",))

    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        return vendor_parameter_violations(parameters, self._settings)

    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        return iter(())

    def load(self, request: LoadRequest) -> Instance:
        library = self._package.load()
        reject(self.check(request.candidate(self.inspect(request.files, request.model_filename))))
        parameters = read_vendor_parameters(request.parameters, self._settings)
        run = parameters.run
        settings = RunnerSettings(
            check_package_hash=parameters.check_package_hash,
            auto_reset=run.auto_reset,
            timeout_ns=run.timeout_ns if "timeout_ns" in request.parameters else None,
        )
        pool, lease = self.ready_pool(), Lease(request.model_name, request.version)
        with ExitStack() as taken:
            try:
                runner = VendorRunner(library, request.files.path(request.model_filename), settings)
            except VendorRunFailed as error:
                raise ModelLoadError(f"'{request.model_filename}' cannot be loaded to an IPU: {error}") from error
            taken.callback(runner.close)
            graph = _served(runner, read_name_map(request.files), request.signature.max_batch_size)
            reject(disagreements(request.signature, graph.input_tensors, graph.output_tensors))
            device = pool.add(lease)
            taken.callback(pool.remove, lease, device)
            return PoplarInstance(
                VendorPopef(runner, graph, device, pool.counters, is_reset=run.auto_reset),
                graph,
                request.signature,
                index_anchor=None,
                pipeline_depth=parameters.pipeline_depth,
                on_close=taken.pop_all().close,
            )


class VendorPopef(LoadedExecutable):
    """A PopEF file on a real device. Any thread may run batches on it."""

    device_errors: ClassVar = (VendorRunFailed,)

    def __init__(
        self, runner: VendorRunner, graph: ServedGraph, device: int, counters: DeviceCounters[Any, Any], *, is_reset: bool
    ) -> None:
        """Runs `graph` by `runner`. `is_reset`: whether the vendor's runner resets the device when it needs that."""
        super().__init__(device, counters, SystemClock())
        self._runner = runner
        self._outputs = [(each.anchor.name, each.call_shape, each.anchor.tensor_info.data_type.numpy) for each in graph.outputs]
        self._is_reset = is_reset

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `GraphRunner.run`."""
        outputs = {name: np.empty(shape, dtype) for name, shape, dtype in self._outputs}
        with self.counted_batch():
            self._runner.execute(inputs, outputs)
        return outputs

    def close(self) -> None:
        self._runner.close()

    def failure(self, error: Exception) -> ServingError:
        assert isinstance(error, VendorRunFailed)
        self._counters.count_fault(self.device_number, error.kind)
        where = f"IPU device {self.device_number}"
        if error.kind == APPLICATION:
            return BackendFailed(f"{where}: {error}")
        if error.kind == IPU_RESET:
            hint = "it is reset before the next batch" if self._is_reset else "auto_reset is off: load the model again"
        else:
            hint = "the vendor's runtime does not recover from this by itself"
        return Unavailable(f"{where} failed: {error}; {hint}")


def _served(runner: VendorRunner, name_map: Mapping[str, str], max_batch_size: int) -> ServedGraph:
    """Returns the anchors of `runner` as clients see them.

    A runner takes any multiple of the compiled batch. So the batch of a call is max_batch_size if that is a multiple.

    Raises:
        ModelLoadError: the name map names an anchor that does not exist.
    """
    anchors = [*runner.inputs, *runner.outputs]
    unknown = [name for name in name_map if name not in {anchor.name for anchor in anchors}]
    if unknown:
        known = ", ".join(anchor.name for anchor in anchors)
        raise ModelLoadError(f"'name_map.json' names anchors {', '.join(unknown)}, which the executable does not have; it has {known}")

    def stream(anchor: Anchor) -> ServedStream:
        shape = anchor.tensor_info.shape
        if max_batch_size and shape and shape[0] > 0 and max_batch_size % shape[0] == 0:
            shape = (max_batch_size, *shape[1:])
        datatype = SERVED[anchor.tensor_info.data_type]
        name = name_map.get(anchor.name, anchor.name)
        return ServedStream(
            anchor=anchor, name=name, call_shape=shape, tensor=FileTensor(name, datatype, shape, casts=castable_to(datatype))
        )

    return ServedGraph(
        index=0,
        names=(),
        inputs=tuple(stream(anchor) for anchor in runner.inputs),
        outputs=tuple(stream(anchor) for anchor in runner.outputs),
        rows=max_batch_size,
        rows_note="",
    )
