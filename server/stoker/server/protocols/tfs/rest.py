"""TensorFlow Serving's REST interface without a transport: from the parsed request body to the response body."""

from typing import Any

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from stoker.backends.api.errors import InvalidRequest, ServingError
from stoker.server.codecs.memo import BoundedCache
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_plans import PredictPlan
from stoker.server.codecs.tensors import strings_cost, whole
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2
from stoker.server.protocols.decoded_call import DecodedCall
from stoker.server.protocols.tfs.examples import read_body
from stoker.server.protocols.tfs.json_codec import (
    Form,
    arrays,
    as_object,
    layout_of,
    planned_arrays,
    print_classes,
    print_numbers,
    print_predictions,
    read_predict,
    signature_name,
)
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE, ModelQuery
from stoker.server.protocols.tfs.predict import Target, infer_request, is_large
from stoker.server.protocols.tfs.service import SIGNATURE_DEF, TfsService


class TfsRest:
    """Handles the REST requests for `service`. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, service: TfsService) -> None:
        self._engine = engine
        self._limits = limits
        self._service = service
        #: Plans by model, version, form and the dims of all inputs.
        self._plans: BoundedCache[_Key, PredictPlan[ModelQuery]] = BoundedCache()

    async def predict(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> bytes:
        """Handles `:predict`, whose body is `given` (`size_bytes` as text).

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, no READY model matches, or the engine
                fails.
        """
        if size_bytes > self._limits.decode_inline_bytes:
            decoded = await self._decode_slowly(query, given, size_bytes, reservation)
        else:
            decoded = self.decode(query, given, size_bytes, reservation)
        return whole(await decoded.outcome(self._engine))

    def decode(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> DecodedCall:
        """The decoded request of `:predict`. REQUIRES: `size_bytes` is at most `decode_inline_bytes`.

        Raises:
            ServingError: the request violates the protocol, the limits or the model's signature, or no READY model matches.
        """
        # The arrays are in memory together with the parsed text.
        reservation.take(size_bytes)
        try:
            body = as_object(given)
            signature = signature_name(body)
            if signature:
                query = query._replace(signature_name=signature)
            target = self._target(query)
            form, request, strings = self._request(target, body, size_bytes)
            if strings:
                reservation.take(strings)
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, Via.TFS_HTTP)
            raise
        return _JsonCall(request, form, self._limits)

    async def _decode_slowly(self, query: ModelQuery, given: Json, size_bytes: int, reservation: Reservation) -> DecodedCall:
        """As `decode`, in a thread."""
        reservation.take(size_bytes)
        try:
            body = as_object(given)
            query = query._replace(signature_name=signature_name(body))
            target = self._target(query)
            form, request = await run_while_borrowed(target.servable, _request, target, body, size_bytes)
            strings = _strings_cost(request, self._limits)
            if strings:
                reservation.take(strings)
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, Via.TFS_HTTP)
            raise
        return _JsonCall(request, form, self._limits)

    def _target(self, query: ModelQuery) -> Target:
        target = self._service.targets.find(query)
        if query.signature_name not in ("", DEFAULT_SIGNATURE):
            raise InvalidRequest(f'Serving signature name: "{query.signature_name[:128]}" not found in signature def')
        return target

    def _request(self, target: Target, body: dict[str, Any], size_bytes: int) -> tuple[Form, InferRequest, int]:
        """The form and the validated request of a body, and the memory of its strings; a known structure reuses its plan."""
        layout = layout_of(body, target.check.inputs)
        if layout is None:
            form, request = _request(target, body, size_bytes)
            return form, request, _strings_cost(request, self._limits)
        query = target.query
        key = (query.name, query.version, layout.form, layout.dims)
        plan = self._plans.entries.get(key)
        if plan is not None and plan.check is target.check:
            inputs = planned_arrays(plan.tensors, layout.values)
            if inputs is not None:
                request = plan.request(
                    query.name, query.version, target.servable, inputs, target.received_ns, size_bytes, None, Via.TFS_HTTP
                )  # fmt: skip
                return layout.form, request, plan.strings_cost
        form, request = _request(target, body, size_bytes)
        plan = self._plans.put(key, PredictPlan(query, target.check, request, self._limits))
        return form, request, plan.strings_cost

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


_Key = tuple[str, int | None, Form, tuple[tuple[int, ...] | None, ...]]


class _JsonCall(DecodedCall):
    """A decoded body of `:predict`."""

    __slots__ = ("_form", "_limits")

    def __init__(self, request: InferRequest, form: Form, limits: Limits) -> None:
        self.request = request
        self._form = form
        self._limits = limits

    def encode(self, response: InferResponse) -> bytes | None:
        return None if is_large(response, self._limits) else print_predictions(response, self._form)

    async def encode_slowly(self, response: InferResponse) -> bytes:
        return await run_off_loop(print_predictions, response, self._form)


def _strings_cost(request: InferRequest, limits: Limits) -> int:
    """Memory overhead of the request's strings."""
    strings = sum([array.size for array in request.inputs.values() if array.dtype.kind == "O"])
    return strings_cost(strings, limits) if strings else 0


def _request(target: Target, body: dict[str, Any], size_bytes: int) -> tuple[Form, InferRequest]:
    read = read_predict(body, target.check.inputs)
    target.check.input_count(len(read.tensors))
    inputs = arrays(read, target.check)
    return read.form, infer_request(target, inputs, target.check.default_outputs, size_bytes=size_bytes, deadline_ns=None, via=Via.TFS_HTTP)


def _plain(message: Message) -> dict[str, Any]:
    """The message as TensorFlow Serving prints it: names in snake_case, defaults too, 64-bit integers as text."""
    return dict(MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
