"""TensorFlow Serving's two services as a table of methods, taken from their descriptors."""

from collections.abc import Awaitable, Callable
from functools import partial

from google.protobuf.message import Message

from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import model_service_pb2, prediction_service_pb2
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.protocols.tfs.status import tfs_status
from stoker.server.rpc.control import ControlMethods
from stoker.server.rpc.method import Method, inference_method

_PREDICTION = prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].methods_by_name
_MODEL = model_service_pb2.DESCRIPTOR.services_by_name["ModelService"].methods_by_name
_RpcResponse = Callable[[bytes, int | None], Awaitable[bytes | Message]]


def tfs_methods(engine: Engine, limits: Limits, service: TfsService) -> tuple[Method, ...]:
    """Every method of PredictionService and ModelService, answered by `service`."""
    control = ControlMethods(engine, limits, tfs_status)
    failed = partial(engine.note_failed, Via.TFS_GRPC)
    responses: dict[str, _RpcResponse] = {
        "Predict": service.predicting.from_message,
        "Classify": service.examples.classify,
        "Regress": service.examples.regress,
        "MultiInference": service.examples.multi_inference,
    }
    return (
        *(
            inference_method(_PREDICTION[name], response, tfs_status, limits.grpc_message_bytes, failed)
            for name, response in responses.items()
        ),
        control.method(_PREDICTION["GetModelMetadata"], lambda request, call: service.get_model_metadata(request)),
        control.method(_MODEL["GetModelStatus"], lambda request, call: service.get_model_status(request)),
        control.method(_MODEL["HandleReloadConfigRequest"], lambda request, call: service.reload_config(request)),
    )
