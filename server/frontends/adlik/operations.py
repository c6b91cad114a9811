"""ModelOperateService: failures are answers with `status: "ERROR"` and a text, never a status of gRPC."""

from server.engine.interface import Engine
from server.frontends.adlik.settings import AdlikSettings
from server.pb.adlik import operate_pb2 as pb

REFUSED = "model operations are not allowed on this server: start it with --allow_model_operate"


class ModelOperations:
    """Adds, deletes, activates and lists models. Confined to: the event loop."""

    def __init__(self, engine: Engine, settings: AdlikSettings) -> None:
        self._engine = engine
        self._settings = settings

    async def run(self, verb: str, request: pb.ModelOperateRequest) -> pb.ModelOperateResponse:
        """Does what the RPC named `verb` asks for."""
        return pb.ModelOperateResponse(status="ERROR", error_message=REFUSED)
