"""Classify, Regress and MultiInference as serialised messages."""

from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from stoker.backends.api.errors import InvalidRequest, Unsupported
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Via
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, regression_pb2
from stoker.server.protocols.tfs.examples import Examples, read_input
from stoker.server.protocols.tfs.infer import Classified, ExampleInference, Regressed
from stoker.server.protocols.tfs.model_spec import ModelQuery, read_spec
from stoker.server.protocols.tfs.signatures import CLASSIFY_METHOD, REGRESS_METHOD

M = TypeVar("M", bound=Message)
#: Bytes of memory for a byte on the wire: an empty feature takes four there, and a message with its map entry here.
_EXPANSION: Final = 48
#: Tasks of one MultiInference.
_MOST_TASKS: Final = 64


class ExampleCalls:
    """Answers the messages that hold Examples. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, inference: ExampleInference) -> None:
        self._engine = engine
        self._limits = limits
        self._inference = inference

    async def classify(self, data: bytes, deadline_ns: int | None) -> Message:
        """Answers a serialised ClassificationRequest.

        Raises:
            ServingError: as `ExampleInference.classify`; InvalidRequest where it is no such message.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, classification_pb2.ClassificationRequest, reservation)
            ask, examples = read_spec(request.model_spec), await self._examples(request.input, data)
            found = await self._inference.classify(ask, examples, len(data), deadline_ns, Via.TFS_GRPC)
            return classification_pb2.ClassificationResponse(result=_classification(found), model_spec=ask.answered(found.version))

    async def regress(self, data: bytes, deadline_ns: int | None) -> Message:
        """Answers a serialised RegressionRequest.

        Raises:
            ServingError: as `classify`.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, regression_pb2.RegressionRequest, reservation)
            ask, examples = read_spec(request.model_spec), await self._examples(request.input, data)
            found = await self._inference.regress(ask, examples, len(data), deadline_ns, Via.TFS_GRPC)
            return regression_pb2.RegressionResponse(result=_regression(found), model_spec=ask.answered(found.version))

    async def multi_inference(self, data: bytes, deadline_ns: int | None) -> Message:
        """Answers a serialised MultiInferenceRequest; its tasks run one after the other.

        Raises:
            ServingError: as `classify`; InvalidRequest too where the tasks are of several models, or two are the same.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, inference_pb2.MultiInferenceRequest, reservation)
            tasks = [(read_spec(task.model_spec), task.method_name) for task in request.tasks]
            _check_tasks(tasks)
            examples = await self._examples(request.input, data)
            response = inference_pb2.MultiInferenceResponse()
            for ask, method in tasks:
                entry = response.results.add()
                found: Classified | Regressed
                if method == CLASSIFY_METHOD:
                    found = await self._inference.classify(ask, examples, len(data), deadline_ns, Via.TFS_GRPC)
                    entry.classification_result.CopyFrom(_classification(found))
                else:
                    found = await self._inference.regress(ask, examples, len(data), deadline_ns, Via.TFS_GRPC)
                    entry.regression_result.CopyFrom(_regression(found))
                entry.model_spec.CopyFrom(ask.answered(found.version))
            return response

    async def _parsed(self, data: bytes, kind: type[M], reservation: Reservation) -> M:
        reservation.take(_EXPANSION * len(data))
        if len(data) > self._limits.decode_inline_bytes:
            return await run_off_loop(_parse, data, kind)
        return _parse(data, kind)

    async def _examples(self, given: input_pb2.Input, data: bytes) -> Examples:
        if len(data) > self._limits.decode_inline_bytes:
            return await run_off_loop(read_input, given)
        return read_input(given)


def _parse(data: bytes, kind: type[M]) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidRequest(f"the request is not a valid {kind.DESCRIPTOR.name} message") from None


def _check_tasks(tasks: list[tuple[ModelQuery, str]]) -> None:
    if not tasks:
        raise InvalidRequest("Inference request must have at least one task.")
    if len(tasks) > _MOST_TASKS:
        raise InvalidRequest(f"Inference request has {len(tasks)} tasks, more than the {_MOST_TASKS} allowed")
    if len({ask.name for ask, _ in tasks}) > 1:
        raise InvalidRequest(f"All ModelSpecs in a MultiInferenceRequest must access the same model name: {tasks[0][0].name[:128]}")
    for _, method in tasks:
        if method not in (CLASSIFY_METHOD, REGRESS_METHOD):
            raise Unsupported(f"Unsupported signature method_name: {method[:128]}")
    if len({(ask.signature_name, method) for ask, method in tasks}) < len(tasks):
        raise InvalidRequest("Duplicate evaluation of signature: two tasks have the same method and signature_name")


def _classification(found: Classified) -> classification_pb2.ClassificationResult:
    result = classification_pb2.ClassificationResult()
    for sample in found.samples:
        result.classifications.add(classes=[classification_pb2.Class(label=label, score=score) for label, score in sample])
    return result


def _regression(found: Regressed) -> regression_pb2.RegressionResult:
    return regression_pb2.RegressionResult(regressions=[regression_pb2.Regression(value=value) for value in found.values])
