"""PredictionService and ModelService without a transport.

Predict, which is hot, is in `predict.py`; Classify and its kin are in `example_calls.py`.
"""

import logging

from stoker.backends.api.errors import Forbidden, InvalidRequest, ModelLoadError
from stoker.server.core.limits import Limits
from stoker.server.core.tasks import ShieldedTasks
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow.core.protobuf import error_codes_pb2
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, model_management_pb2
from stoker.server.protocols.tfs.example_calls import ExampleCalls
from stoker.server.protocols.tfs.infer import ExampleInference
from stoker.server.protocols.tfs.model_spec import ModelQuery, describe, read_spec, resolve
from stoker.server.protocols.tfs.predict import Predict
from stoker.server.protocols.tfs.reload import read_reload
from stoker.server.protocols.tfs.request import Targets
from stoker.server.protocols.tfs.settings import TfsSettings
from stoker.server.protocols.tfs.signatures import signature_def_map
from stoker.server.protocols.tfs.states import model_status
from stoker.server.protocols.tfs.status import FailedPrecondition

SIGNATURE_DEF = "signature_def"
_log = logging.getLogger(__name__)


class TfsService:
    """All that TensorFlow Serving's clients can ask. Confined to: the event loop.

    Attributes:
        targets: What requests reach.
        predicting: PredictionService.Predict.
        inference: Classify and Regress, of both protocols.
        examples: The same as messages.
        settings: What the operator set.
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
            NotFound: no such model or version. InvalidRequest: it asks for nothing, or for something else.
        """
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        if not request.metadata_field:
            raise InvalidRequest("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != SIGNATURE_DEF:
                raise InvalidRequest(f"Metadata field {field[:128]} is not supported")
        return self.metadata(read_spec(request.model_spec))

    def metadata(self, ask: ModelQuery) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """As `get_model_metadata`.

        Raises:
            NotFound: no such model or version, or it is not READY.
        """
        ask = resolve(self._engine, ask, self._limits)
        description = describe(self._engine, ask)
        response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=ask.answered(description.version, signature=False))
        response.metadata[SIGNATURE_DEF].Pack(signature_def_map(description))
        return response

    def get_model_status(self, request: get_model_status_pb2.GetModelStatusRequest) -> get_model_status_pb2.GetModelStatusResponse:
        """The states of a model's versions.

        Raises:
            NotFound: none is known. InvalidRequest: no model is named.
        """
        if not request.HasField("model_spec"):
            raise InvalidRequest("Missing ModelSpec")
        return self.status(read_spec(request.model_spec))

    def status(self, ask: ModelQuery) -> get_model_status_pb2.GetModelStatusResponse:
        """As `get_model_status`."""
        return model_status(self._engine, ask, self._limits)

    async def reload_config(self, request: model_management_pb2.ReloadConfigRequest) -> model_management_pb2.ReloadConfigResponse:
        """Takes the request's list of models in place of the one that is served.

        Raises:
            Forbidden: clients may not, or a folder is not allowed. InvalidRequest: the list. Unavailable: the server follows none.
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
