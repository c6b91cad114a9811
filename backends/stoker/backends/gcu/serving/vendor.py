"""`VendorCards`: the runtime of real GCU cards, by the vendor's package `TopsInference`.

The layout of the vendor's `model.exec` is not public, and the library's Python interface does not describe an engine. So config.pbtxt must
declare all tensors, in the order of the engine. Each load runs the engine once on zeros and compares its outputs with config.pbtxt.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from stoker.backends.api.backend import Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, reject
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature
from stoker.backends.api.tensor import DataType
from stoker.backends.devices.metrics import MetricPage
from stoker.backends.devices.pool import Lease
from stoker.backends.devices.runtime import DeviceRuntime
from stoker.backends.devices.vendor_package import VendorPackage
from stoker.backends.devices.vendor_pool import VendorPool
from stoker.backends.gcu.executable_layout import MAGIC
from stoker.backends.gcu.serving.facts import open_samples
from stoker.backends.gcu.serving.instance import GcuInstance
from stoker.backends.gcu.serving.options import VendorSettings, parameter_violations, read_parameters
from stoker.backends.gcu.serving.placement import ClusterAllocator
from stoker.backends.gcu.serving.vendor_executable import VendorExecutable
from stoker.backends.gcu.vendor.failure import VendorCallFailed

#: Element types that the vendor's library has [the vendor's public header].
_DATATYPES = frozenset(DataType) - {DataType.BYTES}


class VendorCardPool(VendorPool):
    """The real cards of the server.

    Attributes:
        allocator: Assigns clusters to instances.
    """

    def __init__(self, settings: VendorSettings) -> None:
        count = settings.cards
        super().__init__(MetricPage("stoker_gcu_", "card", is_simulated=False), f"{count} GCU card{'s' if count > 1 else ''}", "status")
        self.allocator = ClusterAllocator(settings.cards, settings.clusters)


class VendorCards(DeviceRuntime[VendorCardPool]):
    """Runs the vendor's `model.exec` files."""

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

    def make_pool(self) -> VendorCardPool:
        return VendorCardPool(self._settings)

    def device_ids(self) -> tuple[int, ...]:
        return tuple(range(self._settings.cards))

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        path = files.path(model_filename)
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
        if not head:
            raise ModelLoadError(f"'{model_filename}' is empty")
        if head == MAGIC:
            raise ModelLoadError(
                f"'{model_filename}' is an executable of Stoker's compiler, for simulated cards; a real card takes a file that the "
                "vendor's compiler (TopsInference's optimizer) wrote"
            )
        return ModelFacts(inputs=None, outputs=None, notes=(f"an engine of the vendor's compiler; runs by {self.description}",))

    def parameter_violations(self, parameters: Mapping[str, str]) -> Iterator[Violation]:
        return parameter_violations(parameters, self._settings)

    def fact_violations(self, candidate: Candidate) -> Iterator[Violation]:
        if candidate.signature is not None:
            wrong = list(_tensor_violations(candidate.signature))
            yield from wrong or open_samples(candidate.signature)

    def load(self, request: LoadRequest) -> Instance:
        library = self._package.load()
        reject(self.check(request.candidate(self.inspect(request.files, request.model_filename))))
        pool, parameters = self.ready_pool(), read_parameters(request.parameters)
        lease = Lease(request.model_name, request.version)
        with ExitStack() as taken:
            placement = pool.allocator.take(lease, card=request.device_id, siblings=request.siblings, wanted=parameters.clusters)
            taken.callback(pool.allocator.release, placement)
            path = request.files.path(request.model_filename)
            try:
                loaded = VendorExecutable(library, path, request.signature, placement, parameters, pool.counters)
            except VendorCallFailed as error:
                where = f"card {placement.card}, clusters {', '.join(map(str, placement.clusters))}"
                raise ModelLoadError(f"'{request.model_filename}' cannot be loaded to {where}: {error}") from error
            pool.add(lease, placement.card)
            taken.callback(pool.remove, lease, placement.card)
            return GcuInstance(loaded, request.signature, on_close=taken.pop_all().close)


def _tensor_violations(signature: ModelSignature) -> Iterator[Violation]:
    for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for index, spec in enumerate(specs):
            if spec.datatype not in _DATATYPES:
                yield Violation(f"{side}[{index}].data_type", f"{side} '{spec.name}': a card has no {spec.datatype.config_name}")
            if any(size < 1 for size in (spec.dims if signature.is_batched else spec.dims[1:])):
                yield Violation(
                    f"{side}[{index}].dims", f"{side} '{spec.name}' has open sizes {list(spec.dims)}: engines have static shapes"
                )
            if not signature.is_batched and not spec.dims:
                yield Violation(f"{side}[{index}].dims", f"{side} '{spec.name}' has no dimensions: the first is the number of samples")
