"""ModelService, PredictionService and the reload call as methods without a transport, and their method tables."""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from google.protobuf.message import Message

from stoker.backends.api.errors import Forbidden, InvalidRequest, ModelLoadError, NotFound
from stoker.server.config.report import ConfigError, Report
from stoker.server.config.serving_files import list_of
from stoker.server.core.limits import Limits
from stoker.server.core.model_config import ListedModel
from stoker.server.core.request import Via
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.core.tasks import ShieldedTasks
from stoker.server.engine.interface import Engine, reject_ambiguous
from stoker.server.pb.tensorflow.core.protobuf import error_codes_pb2
from stoker.server.pb.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2,
    prediction_service_pb2,
)
from stoker.server.pb.tensorflow_serving.apis import get_model_status_pb2 as pb
from stoker.server.protocols.settings import TfsSettings
from stoker.server.protocols.tfs.examples import ExampleCalls, ExampleInference
from stoker.server.protocols.tfs.model_spec import (
    FailedPrecondition,
    ModelQuery,
    describe,
    read_spec,
    resolve,
    signature_def_map,
    tfs_status,
)
from stoker.server.protocols.tfs.predict import Predict, Targets
from stoker.server.rpc.control import ControlMethods
from stoker.server.rpc.method import Method, inference_method, unary_method

_STATES = {
    VersionState.NEW: pb.ModelVersionStatus.START,
    VersionState.LOADING: pb.ModelVersionStatus.LOADING,
    VersionState.READY: pb.ModelVersionStatus.AVAILABLE,
    VersionState.DRAINING: pb.ModelVersionStatus.UNLOADING,
    VersionState.UNLOADED: pb.ModelVersionStatus.END,
    VersionState.FAILED: pb.ModelVersionStatus.END,
}


def model_status(engine: Engine, query: ModelQuery, limits: Limits) -> pb.GetModelStatusResponse:
    """The states of the versions that `query` selects, the highest first.

    Raises:
        NotFound: no version of the model is known. InvalidRequest: the label is unknown, there is no name, or several models have it.
    """
    query = resolve(engine, query, limits)
    reject_ambiguous(engine, query.name)
    entries = [entry for entry in engine.index() if entry.name == query.name and entry.version is not None]
    if query.version is not None:
        entries = [entry for entry in entries if entry.version == query.version]
        if not entries:
            raise NotFound(f"Could not find version {query.version} of model {query.name}")
    if not entries:
        raise NotFound(f"Could not find any versions of model {query.name}")
    response = pb.GetModelStatusResponse()
    for entry in sorted(entries, key=lambda entry: -(entry.version or 0)):
        _add(response, entry)
    return response


def _add(response: pb.GetModelStatusResponse, entry: IndexEntry) -> None:
    assert entry.version is not None
    state = VersionState.NEW if entry.state is None else entry.state
    status = response.model_version_status.add(version=entry.version, state=_STATES[state])
    # A version that was unloaded normally is no error.
    status.status.error_code = error_codes_pb2.UNKNOWN if state is VersionState.FAILED else error_codes_pb2.OK
    status.status.error_message = entry.reason if state is VersionState.FAILED else ""


def read_reload(request: model_management_pb2.ReloadConfigRequest) -> tuple[ListedModel, ...]:
    """The complete list of models to serve.

    Raises:
        InvalidRequest: the list is missing or invalid.
    """
    if not request.config.HasField("model_config_list"):
        raise InvalidRequest("ServerCore could not find model_config_list in the config")
    report = Report("ReloadConfigRequest", {}, first_line=None)
    models = list_of(request.config, report, None)
    try:
        report.raise_if_any()
    except ConfigError as error:
        raise InvalidRequest(error.message) from None
    return models


SIGNATURE_DEF = "signature_def"
_log = logging.getLogger(__name__)


class TfsService:
    """TensorFlow Serving's services. Confined to: the event loop.

    Attributes:
        targets: Finds the versions that requests address.
        predicting: PredictionService.Predict.
        inference: Classify and Regress, of both protocols.
        examples: Classify, Regress and MultiInference over gRPC.
        settings: The operator's settings.
    """

    def __init__(self, engine: Engine, limits: Limits, settings: TfsSettings | None = None) -> None:
        """`settings` None: the defaults."""
        self.settings = settings or TfsSettings()
        self._engine = engine
        self._limits = limits
        self._shielded = ShieldedTasks("the change of the list of models", _log, limits.control_timeout_s)
        self.targets = Targets(engine, limits)
        self.predicting = Predict(engine, limits, self.targets)
        self.inference = ExampleInference(engine, limits, self.targets)
        self.examples = ExampleCalls(engine, limits, self.inference)

    def get_model_metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """The signatures of a served version.

        Raises:
            NotFound: no such model or version. InvalidRequest: the request names no metadata field, or an unknown one.
        """
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        if not request.metadata_field:
            raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURE_DEF:
                raise InvalidRequest(f"Metadata field {field[:128]} is not supported")
        return self.metadata(read_spec(request.model_spec))

    def metadata(self, query: ModelQuery) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """As `get_model_metadata`.

        Raises:
            NotFound: no such model or version, or it is not READY.
        """
        query = resolve(self._engine, query, self._limits)
        description = describe(self._engine, query)
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=query.response_spec(description.version, signature=False))
        response.metadata[SIGNATURE_DEF].Pack(signature_def_map(description))
        return response

    def get_model_status(self, request: get_model_status_pb2.GetModelStatusRequest) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions.

        Raises:
            NotFound: no version is known. InvalidRequest: no model is named.
        """
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        return self.status(read_spec(request.model_spec))

    def status(self, query: ModelQuery) -> get_model_status_pb2.GetModelStatusResponse:
        """As `get_model_status`."""
        return model_status(self._engine, query, self._limits)

    async def reload_config(self, request: model_management_pb2.ReloadConfigRequest) -> model_management_pb2.ReloadConfigResponse:
        """Replaces the list of served models by the request's.

        Raises:
            Forbidden: clients may not reload, or a folder is not allowed. InvalidRequest: the list is invalid. Unavailable: the server has
                no model list.
            DeadlineExceeded: the models have not loaded in time; the change goes on.
            FailedPrecondition: a model does not load, or a label belongs to a version that does not serve.
        """
        if not self.settings.allow_reload:
            raise Forbidden("this server takes no list of models from clients: start it with --allow_model_reload")
        models = read_reload(request)
        try:
            await self._shielded.run(self._engine.replace_models(models))
        except ModelLoadError as error:
            raise FailedPrecondition(error.message) from None
        response = model_management_pb2.ReloadConfigResponse()
        response.status.error_code = error_codes_pb2.OK
        return response


_PREDICTION = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].methods_by_name
_MODEL = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].methods_by_name
_RpcResponse = Callable[[bytes, int | None], Awaitable[bytes | Message]]


def tfs_methods(engine: Engine, limits: Limits, service: TfsService) -> tuple[Method, ...]:
    """Every method of PredictionService and ModelService, handled by `service`."""
    control = ControlMethods(engine, limits, tfs_status)
    failed = partial(engine.note_failed, Via.TFS_GRPC)
    responses: dict[str, _RpcResponse] = {
        "Classify": service.examples.classify,
        "Regress": service.examples.regress,
        "MultiInference": service.examples.multi_inference,
    }
    return (
        unary_method(
            _PREDICTION["Predict"], service.predicting.start, tfs_status, limits.grpc_message_bytes, failed, service.predicting.lead_bytes
        ),
        *(
            inference_method(_PREDICTION[name], response, tfs_status, limits.grpc_message_bytes, failed)
            for name, response in responses.items()
        ),
        control.method(_PREDICTION["GetModelMetadata"], lambda request, call: service.get_model_metadata(request)),
        control.method(_MODEL["GetModelStatus"], lambda request, call: service.get_model_status(request)),
        control.method(_MODEL["HandleReloadConfigRequest"], lambda request, call: service.reload_config(request)),
    )
