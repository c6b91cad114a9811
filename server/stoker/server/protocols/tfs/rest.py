"""TensorFlow Serving's REST interface without a transport: from the parsed request body to the response body."""

from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensors import strings_cost
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferRequest, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2
from stoker.server.protocols.tfs.examples import read_body
from stoker.server.protocols.tfs.json_codec import (
    Form,
    arrays,
    as_object,
    layout_of,
    planned_array,
    print_classes,
    print_numbers,
    print_predictions,
    read_predict,
    signature_name,
)
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE, ModelQuery
from stoker.server.protocols.tfs.predict import PredictPlan, Target, infer_request, is_large, plan_of
from stoker.server.protocols.tfs.service import SIGNATURE_DEF, TfsService


class TfsRest:
    """Handles the REST requests for `service`. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, service: TfsService) -> None:
        self._engine = engine
        self._limits = limits
        self._service = service
        #: Plans by model, version, form and the dims of all inputs.
        self._plans: BoundedCache[tuple[str, int | None, Form, tuple[tuple[int, ...] | None, ...]], PredictPlan] = BoundedCache()

    async def predict(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Handles `:predict`, whose body is `given` (`size_bytes` as text).

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, no READY model matches, or the engine
                fails.
        """
        # The arrays are in memory together with the parsed text.
        reservation.take(size_bytes)
        is_long = size_bytes > self._limits.decode_inline_bytes
        try:
            body = as_object(given)
            query = query._replace(signature_name=signature_name(body))
            target = self._service.targets.find(query)
            if query.signature_name not in ("", DEFAULT_SIGNATURE):
                raise InvalidRequest(f'Serving signature name: "{query.signature_name[:128]}" not found in signature def')
            if is_long:
                form, request = await run_while_borrowed(target.servable, _request, target, body, size_bytes)
            else:
                form, request = self._request(target, body, size_bytes)
            strings = sum([array.size for array in request.inputs.values() if array.dtype.kind == "O"])
            if strings:
                reservation.take(strings_cost(strings, self._limits))
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, Via.TFS_HTTP)
            raise
        response = await self._engine.infer(request)
        if is_large(response, self._limits):
            return await run_off_loop(print_predictions, response, form)
        return print_predictions(response, form)

    def _request(self, target: Target, body: dict[str, Any], size_bytes: int) -> tuple[Form, InferRequest]:
        """The validated request of a body; a known structure reuses its plan."""
        layout = layout_of(body, target.check.inputs)
        if layout is None:
            return _request(target, body, size_bytes)
        key = (target.query.name, target.query.version, layout.form, layout.dims)
        plan = self._plans.get(key)
        if plan is not None and plan.check is target.check:
            inputs: dict[str, Array] = {}
            for name, tensor in plan.tensors.items():
                array = planned_array(tensor, layout.values[name])
                if array is None:
                    break
                inputs[name] = array
            else:
                return layout.form, plan.request(target, inputs, size_bytes=size_bytes, deadline_ns=None, via=Via.TFS_HTTP)
        form, request = _request(target, body, size_bytes)
        self._plans.put(key, plan_of(target.query, target, request, self._limits))
        return form, request

    async def classify(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Handles `:classify`.

        Raises:
            ServingError: as `predict`.
        """
        reservation.take(size_bytes)
        body = as_object(given)
        query = query._replace(signature_name=signature_name(body))
        found = await self._service.inference.classify(query, read_body(body, "classify"), size_bytes, None, Via.TFS_HTTP)
        return print_classes(found.samples)

    async def regress(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Handles `:regress`.

        Raises:
            ServingError: as `predict`.
        """
        reservation.take(size_bytes)
        body = as_object(given)
        query = query._replace(signature_name=signature_name(body))
        found = await self._service.inference.regress(query, read_body(body, "regress"), size_bytes, None, Via.TFS_HTTP)
        return print_numbers(found.values)

    def metadata(self, query: ModelQuery) -> bytes:
        """Handles GET `.../metadata`.

        Raises:
            ServingError: as `TfsService.metadata`.
        """
        reply = self._service.metadata(query)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        reply.metadata[SIGNATURE_DEF].Unpack(signatures)
        # In an Any, the signatures would be printed with their type, which TensorFlow Serving omits.
        return orjson.dumps({"model_spec": _plain(reply.model_spec), "metadata": {SIGNATURE_DEF: _plain(signatures)}})

    def status(self, query: ModelQuery) -> bytes:
        """Handles GET of a model.

        Raises:
            ServingError: as `TfsService.status`.
        """
        return orjson.dumps(_plain(self._service.status(query)))


def _request(target: Target, body: dict[str, Any], size_bytes: int) -> tuple[Form, InferRequest]:
    read = read_predict(body, target.check.inputs)
    target.check.input_count(len(read.tensors))
    inputs = arrays(read, target.check)
    return read.form, infer_request(target, inputs, target.check.default_outputs, size_bytes=size_bytes, deadline_ns=None, via=Via.TFS_HTTP)


def _plain(message: Message) -> dict[str, Any]:
    """The message as TensorFlow Serving prints it: names in snake_case, defaults too, 64-bit integers as text."""
    return dict(MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
