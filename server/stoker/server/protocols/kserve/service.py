"""The RPCs of `inference.GRPCInferenceService`, without a transport: messages in, messages out, `ServingError` raised.

ModelInfer and ModelStreamInfer are in `inference.py` and `stream.py`. Every method here takes the request message and the `Call`.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.backends.api.errors import InvalidRequest, ModelLoadError, NotFound, Unsupported
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.server.codecs.validation import check_model_name, parse_version
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import LoadOverrides
from stoker.server.core.state import Duration, IndexEntry, ModelDescription, ModelStatistics, ResponseStatistics
from stoker.server.core.tasks import ShieldedTasks
from stoker.server.engine.interface import Engine
from stoker.server.pb import grpc_service_pb2 as pb
from stoker.server.pb import model_config_pb2 as config_pb
from stoker.server.protocols.kserve.dynamic_settings import Given
from stoker.server.protocols.kserve.extensions import Call, Extensions
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.kserve.stream import StreamInference
from stoker.server.rpc.restricted import Category, Restrictions


def metadata_to_message(description: ModelDescription) -> pb.ModelMetadataResponse:
    """The model's inputs and outputs with a leading -1 where it is batched, and all its READY versions."""
    config = description.config
    lead = (VARIABLE,) if config.signature.is_batched else ()
    return pb.ModelMetadataResponse(
        name=config.name,
        versions=[str(version) for version in description.ready_versions],
        platform=config.platform,
        inputs=[_tensor(spec, lead) for spec in config.signature.inputs],
        outputs=[_tensor(spec, lead) for spec in config.signature.outputs],
    )


def statistics_to_message(statistics: Iterable[ModelStatistics]) -> pb.ModelStatisticsResponse:
    """All versions' statistics. Cache counts are always 0; they are present because clients read them."""
    return pb.ModelStatisticsResponse(model_stats=[_statistics(each) for each in statistics])


def index_to_message(entries: Iterable[IndexEntry]) -> pb.RepositoryIndexResponse:
    """The index; version and state are empty where a model was never loaded."""
    return pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(
                name=entry.name,
                version="" if entry.version is None else str(entry.version),
                state="" if entry.state is None else entry.state.triton_name,
                reason=entry.reason,
            )
            for entry in entries
        ]
    )


def _tensor(spec: TensorSpec, lead: tuple[int, ...]) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype.value, shape=(*lead, *spec.dims))


def _statistics(each: ModelStatistics) -> pb.ModelStatistics:
    return pb.ModelStatistics(
        name=each.name,
        version=str(each.version),
        last_inference=each.last_inference_ms,
        inference_count=each.inference_count,
        execution_count=each.execution_count,
        inference_stats=pb.InferStatistics(
            success=_duration(each.success),
            fail=_duration(each.fail),
            queue=_duration(each.queue),
            compute_input=_duration(each.compute_input),
            compute_infer=_duration(each.compute_infer),
            compute_output=_duration(each.compute_output),
            cache_hit=_duration(each.cache_hit),
            cache_miss=_duration(each.cache_miss),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=batch.batch_size,
                compute_input=_duration(batch.compute_input),
                compute_infer=_duration(batch.compute_infer),
                compute_output=_duration(batch.compute_output),
            )
            for batch in each.batches
        ],
        response_stats={str(position): _response(response) for position, response in enumerate(each.responses)},
    )


def _response(each: ResponseStatistics) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(each.compute_infer),
        compute_output=_duration(each.compute_output),
        success=_duration(each.success),
        fail=_duration(each.fail),
        empty_response=_duration(each.empty_response),
        cancel=_duration(each.cancel),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


_log = logging.getLogger(__name__)
_NO_TRACE = "the server does not support trace settings"
_NO_LOG_SETTINGS = "the server does not support dynamic logging"


class KServeService:
    """All RPCs; the infer RPCs are separate attributes. Confined to: the event loop.

    Attributes:
        inference: ModelInfer.
        stream_inference: ModelStreamInfer.
        headers: Reads the request metadata of infer requests.
    """

    def __init__(self, engine: Engine, limits: Limits, extensions: Extensions | None = None) -> None:
        """`extensions` are those of the server; None: with their default settings."""
        self._extensions = extensions or Extensions(limits)
        self.inference = Inference(engine, limits, self._extensions)
        self.headers = self._extensions.grpc_headers
        self.stream_inference = StreamInference(engine, self.inference, limits, self.headers)
        self._engine = engine
        self._limits = limits
        self._shielded = ShieldedTasks("the load or unload", _log, limits.control_timeout_s)

    async def server_live(self, request: pb.ServerLiveRequest, call: Call) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=self._engine.is_live())

    async def server_ready(self, request: pb.ServerReadyRequest, call: Call) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._engine.is_ready())

    async def model_ready(self, request: pb.ModelReadyRequest, call: Call) -> pb.ModelReadyResponse:
        version = parse_version(request.version, request.name)
        return pb.ModelReadyResponse(ready=self._engine.is_model_ready(request.name, version))

    async def server_metadata(self, request: pb.ServerMetadataRequest, call: Call) -> pb.ServerMetadataResponse:
        server = self._engine.server()
        return pb.ServerMetadataResponse(
            name=server.name, version=server.version, extensions=[*server.extensions, *self._extensions.names()]
        )

    async def model_metadata(self, request: pb.ModelMetadataRequest, call: Call) -> pb.ModelMetadataResponse:
        return metadata_to_message(self._engine.describe(*self._target(request)))

    async def model_config(self, request: pb.ModelConfigRequest, call: Call) -> pb.ModelConfigResponse:
        wire = self._engine.describe(*self._target(request)).config.wire
        return pb.ModelConfigResponse(config=config_pb.ModelConfig.FromString(wire))

    async def model_statistics(self, request: pb.ModelStatisticsRequest, call: Call) -> pb.ModelStatisticsResponse:
        name, version = self._target(request)
        return statistics_to_message(self._engine.statistics(name or None, version))

    async def repository_index(self, request: pb.RepositoryIndexRequest, call: Call) -> pb.RepositoryIndexResponse:
        _reject_repository_name(request.repository_name)
        return index_to_message(self._engine.index(ready_only=request.ready))

    async def repository_model_load(self, request: pb.RepositoryModelLoadRequest, call: Call) -> pb.RepositoryModelLoadResponse:
        _reject_repository_name(request.repository_name)
        name = check_model_name(request.model_name)
        overrides = read_overrides(_values(request.parameters, self._limits))
        try:
            await self._shielded.run(self._engine.load(name, overrides))
        except ModelLoadError as error:
            if error.message.startswith("failed to load"):
                raise
            raise ModelLoadError(f"failed to load '{name}', {error.message}") from None
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: pb.RepositoryModelUnloadRequest, call: Call) -> pb.RepositoryModelUnloadResponse:
        _reject_repository_name(request.repository_name)
        name = check_model_name(request.model_name)
        with_dependents = _values(request.parameters, self._limits).get("unload_dependents", False)
        if not isinstance(with_dependents, bool):
            raise InvalidRequest("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        await self._shielded.run(self._engine.unload(name, unload_dependents=with_dependents))
        return pb.RepositoryModelUnloadResponse()

    async def system_shared_memory_status(
        self, request: pb.SystemSharedMemoryStatusRequest, call: Call
    ) -> pb.SystemSharedMemoryStatusResponse:
        regions = self._extensions.shared_memory.status(request.name)
        status = pb.SystemSharedMemoryStatusResponse.RegionStatus
        return pb.SystemSharedMemoryStatusResponse(
            regions={each.name: status(name=each.name, key=each.key, offset=each.offset, byte_size=each.byte_size) for each in regions}
        )

    async def system_shared_memory_register(
        self, request: pb.SystemSharedMemoryRegisterRequest, call: Call
    ) -> pb.SystemSharedMemoryRegisterResponse:
        self._extensions.shared_memory.register(request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def system_shared_memory_unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, call: Call
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._extensions.shared_memory.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_shared_memory_status(self, request: pb.CudaSharedMemoryStatusRequest, call: Call) -> pb.CudaSharedMemoryStatusResponse:
        if request.name:
            raise NotFound(f"Unable to find cuda shared memory region: '{request.name[:128]}'")
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_shared_memory_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, call: Call
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise InvalidRequest(f"failed to register CUDA shared memory region: '{request.name[:128]}', GPUs not supported")

    async def cuda_shared_memory_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, call: Call
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        return pb.CudaSharedMemoryUnregisterResponse()

    async def trace_setting(self, request: pb.TraceSettingRequest, call: Call) -> pb.TraceSettingResponse:
        response = pb.TraceSettingResponse()
        given = {name: list(setting.value) for name, setting in request.settings.items()}
        for name, values in self.change_trace_settings(request.model_name, given, self._extensions.grpc_restrictions).items():
            response.settings[name].value.extend(values)
        return response

    async def log_settings(self, request: pb.LogSettingsRequest, call: Call) -> pb.LogSettingsResponse:
        given: dict[str, bool | int | str | None] = {}
        for name, setting in request.settings.items():
            choice = setting.WhichOneof("parameter_choice")
            given[name] = None if choice is None else getattr(setting, choice)
        response = pb.LogSettingsResponse()
        for name, value in self.change_log_settings(given, self._extensions.grpc_restrictions).items():
            kind = "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else "string_param"
            setattr(response.settings[name], kind, value)
        return response

    def change_trace_settings(self, model: str, given: Given, restrictions: Restrictions) -> dict[str, list[str]]:
        """Changes the trace settings of `model` (empty: of all models) that `given` names; returns all of them.

        `restrictions` are those of the call's port.

        Raises:
            Unsupported: this server does not trace. Forbidden: the client may not change them. And as `TraceControl.update`.
        """
        traces = self._extensions.traces
        if traces is None:
            raise Unsupported(_NO_TRACE)
        if given:
            self._extensions.changes.require(Category.TRACE, restrictions)
            traces.update(model, given)
        return traces.read(model)

    def change_log_settings(self, given: Mapping[str, Any], restrictions: Restrictions) -> dict[str, bool | int | str]:
        """Changes the log settings that `given` names; returns all of them.

        `restrictions` are those of the call's port.

        Raises:
            Unsupported: the server does not control the log. Forbidden: the client may not change it. And as `LogControl.update`.
        """
        logs = self._extensions.logs
        if logs is None:
            raise Unsupported(_NO_LOG_SETTINGS)
        if given:
            self._extensions.changes.require(Category.LOGGING, restrictions)
        logs.update(given)
        return logs.read()

    def _target(self, request: pb.ModelMetadataRequest | pb.ModelConfigRequest | pb.ModelStatisticsRequest) -> tuple[str, int | None]:
        if len(request.name) > self._limits.name_length:
            raise InvalidRequest(f"model name has {len(request.name)} characters, more than the {self._limits.name_length} allowed")
        return request.name, parse_version(request.version, request.name)


def read_overrides(parameters: Mapping[str, object]) -> LoadOverrides:
    """The configuration and files in the parameters of a load request.

    Raises:
        InvalidRequest: a key is unknown, a value has a wrong type, or there are files without a config.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in parameters.items():
        if key == "config":
            if not isinstance(value, str):
                raise InvalidRequest("invalid value type for load parameter 'config', expected string_param.")
            config = value
        elif key.startswith("file:"):
            if not isinstance(value, bytes):
                raise InvalidRequest(f"invalid value type for load parameter '{key[:128]}', expected bytes_param.")
            files[key.removeprefix("file:")] = value
        else:
            raise InvalidRequest(f"unrecognized load parameter '{key[:128]}'; allowed are 'config' and 'file:<path>'")
    if files and config is None:
        raise InvalidRequest("load parameter 'config' must be given along with 'file:<path>' parameters")
    return LoadOverrides(config, files)


def _values(parameters: Mapping[str, pb.ModelRepositoryParameter], limits: Limits) -> dict[str, object]:
    if len(parameters) > limits.parameter_count:
        raise InvalidRequest(f"request has {len(parameters)} parameters, more than the {limits.parameter_count} allowed")
    values: dict[str, object] = {}
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        values[key] = None if choice is None else getattr(parameter, choice)
    return values


def _reject_repository_name(name: str) -> None:
    if name:
        raise Unsupported("'repository_name' specification is not supported")
