"""An `Engine` whose models are Python functions, for tests of the protocols."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from stoker.backends.api.errors import NotFound, ServingError, Unavailable, UnknownModel
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.config.report import Finding, FindingKind
from stoker.server.core.byte_budget import ByteBudget, Upload
from stoker.server.core.model_config import InstanceGroup, ListedModel, LoadOverrides, ModelConfig
from stoker.server.core.request import Array, Done, EngineResult, InferRequest, InferResponse, InFlight, Via
from stoker.server.core.state import (
    BatchSizeStatistics,
    Duration,
    IndexEntry,
    ModelDescription,
    ModelStatistics,
    ServerDescription,
    VersionState,
)
from stoker.server.observability.recorder import GoawayReason
from stoker.server.pb import model_config_pb2
from stoker.server.tuning.read_batching import Reads

Function = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass
class FakeModel:
    """A model: its description, its function, and hooks for tests."""

    config: ModelConfig
    function: Function
    versions: tuple[int, ...] = (1,)
    is_ready: bool = True
    labels: dict[str, list[str]] = field(default_factory=dict)
    version_labels: dict[str, int] = field(default_factory=dict)
    before: Callable[[InferRequest], Awaitable[None]] | None = None
    responses: int = 1


def signature(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int = 8) -> ModelSignature:
    return ModelSignature(tuple(inputs), tuple(outputs), max_batch_size)


def model(name: str, of: ModelSignature, function: Function, **options: object) -> FakeModel:
    wire = model_config_pb2.ModelConfig(name=name, platform="fake", backend="fake", max_batch_size=of.max_batch_size)
    for spec in of.inputs:
        wire.input.add(name=spec.name, data_type=spec.datatype.config_name, dims=spec.dims)
    for spec in of.outputs:
        wire.output.add(name=spec.name, data_type=spec.datatype.config_name, dims=spec.dims)
    wire.parameters["answer"].string_value = "42"
    wire.dynamic_batching.max_queue_delay_microseconds = 100
    config = ModelConfig(
        name=name,
        backend="fake",
        platform="fake",
        signature=of,
        model_filename="model",
        instance_groups=(InstanceGroup(name=name, count=1),),
        wire=wire.SerializeToString(),
    )
    return FakeModel(config, function, **options)  # type: ignore[arg-type]


def simple() -> FakeModel:
    """INPUT0, INPUT1 INT32 [16] -> OUTPUT0 sum, OUTPUT1 difference; max_batch_size 8."""
    tensors = [TensorSpec(f"{kind}{i}", DataType.INT32, (16,)) for kind in ("INPUT", "OUTPUT") for i in (0, 1)]

    def run(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        a, b = inputs["INPUT0"], inputs["INPUT1"]
        return {"OUTPUT0": a + b, "OUTPUT1": a - b}  # type: ignore[operator]

    return model("simple", signature(tensors[:2], tensors[2:]), run)


def echo(datatype: DataType, dims: tuple[int, ...] = (-1,), max_batch_size: int = 8, name: str = "") -> FakeModel:
    """INPUT -> OUTPUT, the same."""
    of = signature([TensorSpec("INPUT", datatype, dims)], [TensorSpec("OUTPUT", datatype, dims)], max_batch_size)
    return model(name or f"echo_{datatype.value.lower()}", of, lambda inputs: {"OUTPUT": inputs["INPUT"]})


class PeakBudget(ByteBudget):
    """The server's own budget, which notes the most that was held at once as `peak_bytes`."""

    peak_bytes = 0

    def reserve(self, size_bytes: int, held_bytes: int = 0, requester: Upload | None = None) -> bool:
        if not super().reserve(size_bytes, held_bytes, requester):
            return False
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return True

    def reserve_whole(self, size_bytes: int, requester: Upload | None, slower_than: float) -> bool:
        if not super().reserve_whole(size_bytes, requester, slower_than):
            return False
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return True


class PlainBudget(ByteBudget):
    """A plain sum that may be `limit_bytes` at most, without the server's rules."""

    def __init__(self, limit_bytes: int, now_ns: Callable[[], int]) -> None:
        super().__init__(1 << 62, now_ns)
        self.limit_bytes = limit_bytes
        self.reserved_bytes = 0
        self.peak_bytes = 0

    def reserve(self, size_bytes: int, held_bytes: int = 0, requester: Upload | None = None) -> bool:
        if self.reserved_bytes + size_bytes > self.limit_bytes:
            return False
        self.reserved_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        return True

    def reserve_whole(self, size_bytes: int, requester: Upload | None, slower_than: float) -> bool:
        return self.reserve(size_bytes)

    def has_response_space(self, size_bytes: int) -> bool:
        return self.reserved_bytes + size_bytes <= self.limit_bytes

    def reserve_response(self, size_bytes: int, held_bytes: int = 0) -> bool:
        return self.reserve(size_bytes)

    def release(self, size_bytes: int, held_bytes: int | None = None) -> None:
        self.reserved_bytes -= size_bytes
        self.queue.released()


class FakeEngine:
    """Implements `stoker.server.engine.interface.Engine`. `loads`, `unloads` and `requests` record the calls."""

    def __init__(self, *models: FakeModel, budget_bytes: int = 1 << 40, budget: ByteBudget | None = None) -> None:
        """`budget`: the server's own; None: a plain sum that may be `budget_bytes` at most."""
        self.budget = budget or PlainBudget(budget_bytes, self.now_ns)
        self.reads = Reads()
        self.rejected: list[str] = []
        self.refused_versions: list[int | None] = []
        self.failures: list[tuple[Via, type[ServingError]]] = []
        self.failed_models: list[str] = []
        self.failed_versions: list[int | None] = []
        self.goaways: list[GoawayReason] = []
        self.models = {m.config.name: m for m in models}
        self.live = True
        self.ready = True
        self.requests: list[InferRequest] = []
        self.cancelled: list[InferRequest] = []
        self.cancellation = asyncio.Event()
        self.arrival = asyncio.Event()
        self.loads: list[tuple[str, LoadOverrides]] = []
        self.lists: list[tuple[ListedModel, ...]] = []
        self.unloads: list[tuple[str, bool]] = []
        self.load_error: ServingError | None = None
        self.time_ns = 1_000_000_000

    def limit_budget(self, limit_bytes: int) -> None:
        """Changes the limit of the plain budget."""
        assert isinstance(self.budget, PlainBudget)
        self.budget.limit_bytes = limit_bytes

    def count_rejected(self, name: str, version: int | None, error: ServingError, via: Via) -> None:
        self.rejected.append(name)
        self.refused_versions.append(version)

    def note_failed(self, via: Via, error: ServingError, model: str = "", version: int | None = None) -> None:
        self.failures.append((via, type(error)))
        self.failed_models.append(model)
        self.failed_versions.append(version)

    def note_goaway(self, reason: GoawayReason) -> None:
        self.goaways.append(reason)

    def is_live(self) -> bool:
        return self.live

    def is_ready(self) -> bool:
        return self.ready

    def is_model_ready(self, name: str, version: int | None) -> bool:
        found = self.models.get(name)
        return found is not None and found.is_ready and (version is None or version in found.versions)

    def server(self) -> ServerDescription:
        return ServerDescription("fake", "1.2.3", ("statistics", "binary_tensor_data"))

    def describe(self, name: str, version: int | None) -> ModelDescription:
        found = self.models.get(name)
        if found is None:
            raise UnknownModel(f"Request for unknown model: '{name}' is not found")
        if version is not None and version not in found.versions:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        if not found.is_ready:
            raise Unavailable(f"Request for unavailable model: '{name}' is not ready")
        return ModelDescription(found.config, version or max(found.versions), found.versions)

    def labels(self, name: str, version: int | None, output: str) -> Sequence[str]:
        self.describe(name, version)
        return self.models[name].labels.get(output, [])

    def findings(self, name: str, version: int | None) -> Sequence[Finding]:
        self.describe(name, version)
        return (Finding("max_batch_size", FindingKind.WRITTEN, "8"), Finding("backend", FindingKind.INFERRED, "fake, by the file"))

    def resolve(self, name: str, version: int | None) -> "FakeServable":
        found = self.describe(name, version)
        return FakeServable(found.version, found.config.signature)

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        async def run() -> None:
            try:
                answer: EngineResult = await self.infer(request)
            except Exception as error:  # a defect of an engine is the front's to answer
                answer = error  # type: ignore[assignment]
            done(answer)

        return _Flight(asyncio.ensure_future(run()))

    def labelled_version(self, name: str, label: str) -> int | None:
        found = self.models.get(name)
        return None if found is None else found.version_labels.get(label)

    async def infer(self, request: InferRequest) -> InferResponse:
        self.requests.append(request)
        self.arrival.set()
        found = self.models[request.model_name]
        if found.before is not None:
            try:
                await found.before(request)
            except asyncio.CancelledError:
                self.cancelled.append(request)
                self.cancellation.set()
                raise
        outputs = found.function(request.inputs)
        version = request.model_version or max(found.versions)
        wanted = {name: np.asarray(outputs[name]) for name in request.output_names}
        return InferResponse(
            model_name=request.model_name,
            model_version=version,
            request_id=request.request_id,
            outputs=wanted,
            signature=found.config.signature,
        )

    async def stream(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        response = await self.infer(request)
        for _ in range(self.models[request.model_name].responses):
            yield response

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        served = [IndexEntry(name, v, VersionState.READY, "", "fake") for name, m in self.models.items() if m.is_ready for v in m.versions]
        return served if ready_only else [*served, IndexEntry("never", None, None, "", "")]

    async def load(self, name: str, overrides: LoadOverrides) -> None:
        self.loads.append((name, overrides))
        if self.load_error is not None:
            raise self.load_error

    async def refresh(self, name: str) -> None:
        if self.load_error is not None:
            raise self.load_error

    async def replace_models(self, models: Sequence[ListedModel]) -> None:
        self.lists.append(tuple(models))
        if self.load_error is not None:
            raise self.load_error

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        self.unloads.append((name, unload_dependents))

    def statistics(self, name: str | None, version: int | None) -> list[ModelStatistics]:
        names = list(self.models) if name is None else [self.describe(name, version).config.name]
        each = Duration(3, 3000)
        return [
            ModelStatistics(
                name=n,
                version=v,
                last_inference_ms=1_700_000_000_000,
                inference_count=3,
                execution_count=2,
                success=each,
                queue=each,
                batches=(BatchSizeStatistics(1, each, each, each),),
            )
            for n in names
            for v in self.models[n].versions
        ]

    def metrics_text(self) -> bytes:
        return b"# HELP fake_total A count\n# TYPE fake_total counter\nfake_total 1\n"

    def serving_metrics_text(self) -> bytes:
        return b"# TYPE :tensorflow:serving:request_count counter\n:tensorflow:serving:request_count 1\n"

    @property
    def reserved_bytes(self) -> int:
        budget = self.budget
        return budget.reserved_bytes if isinstance(budget, PlainBudget) else budget.held_bytes

    @property
    def peak_bytes(self) -> int:
        assert isinstance(self.budget, PlainBudget | PeakBudget)
        return self.budget.peak_bytes

    def now_ns(self) -> int:
        return self.time_ns


@dataclass(frozen=True)
class FakeServable:
    """A `stoker.server.core.request.Servable` that is never unloaded."""

    version: int
    signature: ModelSignature

    def borrowed(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Flight:
    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()
