"""Adlik's services as methods without a transport, and their method tables."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from stoker.backends.api.errors import NotFound, UnknownModel, Unsupported
from stoker.server.codecs.tensor_proto import NUMBERS
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import AllVersions, LatestVersions, NoVersions, SpecificVersions, VersionPolicy
from stoker.server.core.request import Via
from stoker.server.core.state import IndexEntry, ModelDescription, VersionState
from stoker.server.engine.interface import Engine
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.pb import model_config_pb2 as triton_pb
from stoker.server.pb.adlik import model_pb2 as pb
from stoker.server.pb.adlik import operate_pb2, predict_pb2
from stoker.server.protocols.adlik.operations import ModelOperations
from stoker.server.protocols.adlik.predict import Predict
from stoker.server.protocols.adlik.request import ModelQuery, read_spec, served_version
from stoker.server.protocols.settings import AdlikSettings
from stoker.server.rpc.control import ControlMethods, Run
from stoker.server.rpc.method import Failed, Method, unary_method
from stoker.server.rpc.status import adlik_status

_STATES = {
    VersionState.NEW: pb.MODEL_LOADING,
    VersionState.LOADING: pb.MODEL_LOADING,
    VersionState.READY: pb.MODEL_READY,
    VersionState.DRAINING: pb.MODEL_UNLOADING,
    VersionState.UNLOADED: pb.MODEL_UNAVAILABLE,
    VersionState.FAILED: pb.MODEL_UNAVAILABLE,
}
_UINT32_MAX = (1 << 32) - 1
_INT32_MAX = (1 << 31) - 1
#: Adlik's instance kinds; other devices are KIND_AUTO.
_KINDS = {"KIND_CPU": pb.ModelInstanceGroup.KIND_CPU, "KIND_GPU": pb.ModelInstanceGroup.KIND_GPU}


def config_message(description: ModelDescription) -> pb.ModelConfigProto:
    """The completed configuration of a served version in Adlik's form."""
    config, written = description.config, triton_pb.ModelConfig.FromString(description.config.wire)
    message = pb.ModelConfigProto(
        name=config.name,
        platform=config.platform,
        platform_version=config.parameters.get("platform_version", ""),
        version_policy=_policy(config.version_policy),
        max_batch_size=config.signature.max_batch_size,
        algorithm=config.parameters.get("algorithm", ""),
    )
    formats = {tensor.name: triton_pb.ModelInput.Format.Name(tensor.format) for tensor in written.input}
    for spec in config.signature.inputs:
        layout = pb.ModelInput.Format.Value(formats.get(spec.name, "FORMAT_NONE"))
        message.input.add(name=spec.name, data_type=NUMBERS[spec.datatype], format=layout, dims=spec.dims)
    for spec in config.signature.outputs:
        labels = config.label_files.get(spec.name, "")
        message.output.add(name=spec.name, data_type=NUMBERS[spec.datatype], dims=spec.dims, label_filename=labels)
    for group in config.instance_groups:
        kind = _KINDS.get(group.kind, pb.ModelInstanceGroup.KIND_AUTO)
        message.instance_group.add(name=group.name, count=group.count, gpus=group.gpus, kind=kind)
    if (batching := config.dynamic_batching) is not None:
        enqueued = config.max_enqueued_requests // max(1, config.signature.max_batch_size)
        message.dynamic_batching.SetInParent()
        message.dynamic_batching.preferred_batch_size.extend(batching.preferred_batch_sizes)
        message.dynamic_batching.max_queue_delay_microseconds = min(batching.max_queue_delay_us, _INT32_MAX)
        message.dynamic_batching.max_enqueued_batches = min(enqueued, _INT32_MAX)
    return message


def version_states(entries: Iterable[IndexEntry], version: int | None) -> dict[int, pb.ModelVersionStatus]:
    """The state of each version (None: all); numbers of more than 32 bits do not fit the message and are left out."""
    return {
        entry.version: pb.ModelVersionStatus(ready_state=_STATES[entry.state])
        for entry in entries
        if entry.version is not None and entry.state is not None and version in (None, entry.version) and entry.version <= _UINT32_MAX
    }


def _policy(policy: VersionPolicy) -> pb.VersionPolicyProto:
    match policy:
        case LatestVersions(count):
            return pb.VersionPolicyProto(latest=pb.VersionPolicyProto.Latest(num_versions=count))
        case AllVersions():
            return pb.VersionPolicyProto(all=pb.VersionPolicyProto.All())
        case SpecificVersions(versions):
            return pb.VersionPolicyProto(specific=pb.VersionPolicyProto.Specific(versions=versions))
        case NoVersions():
            return pb.VersionPolicyProto(none=getattr(pb.VersionPolicyProto, "None")())


NO_TASKS = (
    "tasks (TaskService.create, :ml_predict) are not offered by this server: they belong to Adlik's 'ml' runtime for training and "
    "classical machine learning; use predict"
)


class AdlikService:
    """Adlik's services. Confined to: the event loop.

    Attributes:
        predicting: PredictService.predict, of both protocols.
        operations: ModelOperateService.
        settings: The operator's settings.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        settings: AdlikSettings,
        repositories: tuple[Path, ...] = (),
        control_mode: ControlMode = ControlMode.POLL,
    ) -> None:
        """Serves `engine`, whose models are in `repositories` and are loaded according to `control_mode`."""
        self.predicting = Predict(engine, limits)
        self.operations = ModelOperations(engine, settings, repositories, control_mode, limit_s=limits.control_timeout_s)
        self.settings = settings
        self._engine = engine
        self._limits = limits

    def get_model_meta(self, request: predict_pb2.GetModelMetaRequest) -> predict_pb2.GetModelMetaResponse:
        """As `metadata`, for a GetModelMetaRequest."""
        return self.metadata(read_spec(request.model_spec))

    def metadata(self, query: ModelQuery) -> predict_pb2.GetModelMetaResponse:
        """The model's configuration and the states of its versions, or only of the requested one.

        Raises:
            NotFound: no such model or version. Unavailable: no version of it is READY. InvalidRequest: the name is no valid model name.
        """
        version = served_version(self._engine, query, self._limits)
        known = [entry for entry in self._engine.index() if entry.name == query.name]
        if not known:
            raise UnknownModel(f"model '{query.name}' is not found")
        # The configuration is that of any version that serves; the requested version only selects the states to report.
        states = version_states(known, version)
        if version is not None and version not in (entry.version for entry in known):
            raise NotFound(f"model '{query.name}' has no version {version}")
        ready = self._engine.is_model_ready(query.name, version)
        description = self._engine.describe(query.name, version if ready else None)
        return predict_pb2.GetModelMetaResponse(model_spec=query.echo, config=config_message(description), version_status=states)

    def create(self, request: operate_pb2.CreateTaskRequest) -> operate_pb2.CreateTaskResponse:
        """Rejects the request: the server has no tasks.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(NO_TASKS)

    def server_status(self, request: operate_pb2.ServerStatusRequest) -> operate_pb2.ServerStatusResponse:
        """Always `running`."""
        return operate_pb2.ServerStatusResponse(status="running")


_SERVICES = (
    predict_pb2.DESCRIPTOR.services_by_name["PredictService"],
    operate_pb2.DESCRIPTOR.services_by_name["TaskService"],
    operate_pb2.DESCRIPTOR.services_by_name["ModelOperateService"],
    operate_pb2.DESCRIPTOR.services_by_name["ServerStatusService"],
)


def adlik_methods(engine: Engine, limits: Limits, service: AdlikService) -> tuple[Method, ...]:
    """Every method of the four services, handled by `service`."""
    control = ControlMethods(engine, limits, adlik_status)
    failed = partial(engine.note_failed, Via.ADLIK_GRPC)
    return tuple(_method(descriptor, service, control, limits, failed) for each in _SERVICES for descriptor in each.methods)


def _method(descriptor: Any, service: AdlikService, control: ControlMethods, limits: Limits, failed: Failed) -> Method:
    if descriptor.name == "predict":
        return unary_method(
            descriptor, service.predicting.start, adlik_status, limits.grpc_message_bytes, failed, service.predicting.lead_bytes
        )
    runs: dict[str, Callable[[Any], Message | Awaitable[Message]]] = {
        "getModelMeta": service.get_model_meta,
        "create": service.create,
        "serverStatus": service.server_status,
    }
    return control.method(descriptor, _without_call(runs.get(descriptor.name) or partial(service.operations.run, descriptor.name)))


def _without_call(run: Callable[[Any], Message | Awaitable[Message]]) -> Run:
    return lambda request, call: run(request)
