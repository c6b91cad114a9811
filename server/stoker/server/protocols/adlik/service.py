"""The RPCs of Adlik's four services, without a transport.

Predict, which is hot, is in `predict.py`; model operations are in `operations.py`.
"""

from stoker.backends.api.errors import NotFound, UnknownModel, Unsupported
from stoker.server.core.limits import Limits
from stoker.server.engine.interface import Engine
from stoker.server.pb.adlik import operate_pb2, predict_pb2
from stoker.server.protocols.adlik.metadata import config_message, version_states
from stoker.server.protocols.adlik.model_spec import ModelQuery, read_spec, served_version
from stoker.server.protocols.adlik.operations import ModelOperations
from stoker.server.protocols.adlik.predict import Predict
from stoker.server.protocols.adlik.settings import AdlikSettings

NO_TASKS = (
    "tasks (TaskService.create, :ml_predict) are not offered by this server: they belong to Adlik's 'ml' runtime for training and "
    "classical machine learning; use predict"
)


class AdlikService:
    """All that Adlik's clients can ask. Confined to: the event loop.

    Attributes:
        predicting: PredictService.predict, of both protocols.
        operations: ModelOperateService.
        settings: What the operator set.
    """

    def __init__(self, engine: Engine, limits: Limits, settings: AdlikSettings) -> None:
        self.predicting = Predict(engine, limits)
        self.operations = ModelOperations(engine, settings, limit_s=limits.control_timeout_s)
        self.settings = settings
        self._engine = engine
        self._limits = limits

    def get_model_meta(self, request: predict_pb2.GetModelMetaRequest) -> predict_pb2.GetModelMetaResponse:
        """As `metadata`, for a message."""
        return self.metadata(read_spec(request.model_spec))

    def metadata(self, ask: ModelQuery) -> predict_pb2.GetModelMetaResponse:
        """The model's configuration and the state of its versions (of the one asked for, where one is).

        Raises:
            NotFound: no such model or version. Unavailable: no version of it is READY. InvalidRequest: the name cannot be a model's.
        """
        version = served_version(self._engine, ask, self._limits)
        known = [entry for entry in self._engine.index() if entry.name == ask.name]
        if not known:
            raise UnknownModel(f"model '{ask.name}' is not found")
        # The configuration is that of any version that serves; which one is asked for only says whose state is told.
        states = version_states(known, version)
        if version is not None and version not in (entry.version for entry in known):
            raise NotFound(f"model '{ask.name}' has no version {version}")
        ready = self._engine.is_model_ready(ask.name, version)
        description = self._engine.describe(ask.name, version if ready else None)
        return predict_pb2.GetModelMetaResponse(model_spec=ask.echo, config=config_message(description), version_status=states)

    def create(self, request: operate_pb2.CreateTaskRequest) -> operate_pb2.CreateTaskResponse:
        """Refused: there are no tasks here.

        Raises:
            Unsupported: always.
        """
        raise Unsupported(NO_TASKS)

    def server_status(self, request: operate_pb2.ServerStatusRequest) -> operate_pb2.ServerStatusResponse:
        """`running`, as long as anybody is there to say so."""
        return operate_pb2.ServerStatusResponse(status="running")
