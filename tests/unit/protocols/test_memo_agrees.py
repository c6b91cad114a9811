"""Requests of every protocol are decoded with a memo as without: valid ones to the same request, invalid ones to the same error."""

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.api.errors import ServingError
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import parse_json
from stoker.server.codecs.tensor_plans import CONTENT
from stoker.server.codecs.tensor_proto import NUMBERS, VALUE_FIELDS
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.pb import grpc_service_pb2
from stoker.server.pb.adlik import predict_pb2 as adlik_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2
from stoker.server.protocols.adlik.predict import Predict as AdlikPredict
from stoker.server.protocols.adlik.request import ModelQuery as AdlikQuery
from stoker.server.protocols.exchange import HttpCall
from stoker.server.protocols.infer_completion import MessageInference
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.tfs import json_codec
from stoker.server.protocols.tfs.model_spec import ModelQuery
from stoker.server.protocols.tfs.predict import Predict, Targets
from stoker.server.protocols.tfs.rest import TfsRest
from stoker.server.protocols.tfs.service import TfsService
from tests.fakes.fake_engine import FakeEngine, FakeModel, model, signature

#: Shallow, so that nesting reaches the limit.
LIMITS = Limits(json_depth=6)
DATATYPES = [kind for kind in DataType if kind.value != "UINT16"]


class _Arrived(BaseException):
    """A request has reached the engine."""

    def __init__(self, request: InferRequest, held_bytes: int) -> None:
        self.request = request
        self.held_bytes = held_bytes


class _Engine(FakeEngine):
    async def infer(self, request: InferRequest) -> Any:
        raise _Arrived(request, self.reserved_bytes)

    def submit(self, request: InferRequest, done: Any) -> Any:
        raise _Arrived(request, self.reserved_bytes)


#: Without a deadline.
_CALL: Any = HttpCall(())
#: Decodes a body up to the engine.
Decode = Callable[[Any], object]


def _driven(started: Awaitable[object]) -> None:
    running: Any = started
    try:
        running.send(None)
    except StopIteration:
        raise AssertionError("the request did not reach the engine") from None


def _kserve_json(engine: _Engine) -> Decode:
    infer = HttpInfer(engine, LIMITS)

    def decode(body: tuple[bytes, str | None]) -> None:
        text, header_length = body
        with Reservation(engine.budget) as reservation:
            decoded = infer.decode_now(InferCall("m", None, header_length, None, None), text, 5, reservation)
            assert decoded is not None
            raise _Arrived(decoded.request, engine.reserved_bytes)

    return decode


def _kserve_message(engine: _Engine) -> Decode:
    return _started(Inference(engine, LIMITS))


def _started(method: Inference | MessageInference) -> Decode:
    def decode(body: bytes) -> None:
        outcomes: list[Any] = []
        method.start(body, _CALL).then(outcomes.append)
        (error,) = outcomes
        raise error

    return decode


def _tfs_json(engine: _Engine) -> Decode:
    rest = TfsRest(engine, LIMITS, TfsService(engine, LIMITS))

    def decode(text: bytes) -> None:
        with Reservation(engine.budget) as reservation:
            _driven(rest.predict(ModelQuery("m"), json_codec.parse(text, LIMITS), len(text), reservation))

    return decode


def _tfs_message(engine: _Engine) -> Decode:
    return _started(Predict(engine, LIMITS, Targets(engine, LIMITS)))


def _adlik_json(engine: _Engine) -> Decode:
    predict = AdlikPredict(engine, LIMITS)

    def decode(text: bytes) -> None:
        with Reservation(engine.budget) as reservation:
            _driven(predict.from_json(AdlikQuery("m"), parse_json(text, LIMITS), len(text), reservation))

    return decode


def _adlik_message(engine: _Engine) -> Decode:
    return _started(AdlikPredict(engine, LIMITS))


def _array(array: Any) -> tuple[object, ...]:
    elements = array.tolist() if array.dtype == np.object_ else array.tobytes()
    return str(array.dtype), array.shape, elements


def _outcome(engine: _Engine, decode: Decode, body: Any) -> tuple[object, ...]:
    engine.rejected.clear()
    held_bytes = engine.reserved_bytes
    try:
        decode(body)
    except _Arrived as arrived:
        request = arrived.request
        fields = (
            request.model_name, request.model_version, request.output_names, request.request_id, request.rows, request.deadline_ns,
            dict(request.parameters), request.size_bytes, request.via, request.priority, request.timeout_us, request.sequence,
        )  # fmt: skip
        assert request.servable is not None
        assert request.signature is request.servable.signature
        inputs = {name: _array(array) for name, array in request.inputs.items()}
        return fields, list(inputs), inputs, arrived.held_bytes - held_bytes, engine.rejected[:]
    except ServingError as error:
        return type(error).__name__, error.message, engine.rejected[:]
    raise AssertionError


class _Object(list[tuple[str, Any]]):
    """A JSON object whose keys may repeat."""


def _text(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(each)}" for key, each in value) + "}"
    if isinstance(value, dict):
        return _text(_Object(value.items()))
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list | tuple) else json.dumps(value)


class _Structure(NamedTuple):
    """What several requests have in common.

    Attributes:
        shape: Of every input.
        names: Of the inputs.
        is_binary: Whether elements are bytes; in TensorFlow Serving's JSON, whether tensors are columns.
        is_extended: Whether requests name outputs, parameters and the like.
        version: Asked for; empty: none.
        dtype: TensorFlow's number; 0: not said.
        rows: Of a batched model.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    is_binary: bool
    is_extended: bool
    version: str
    dtype: int
    rows: int


ODD = [
    float("nan"), float("-inf"), True, False, None, 1.5, 2.0, 1e39, 1e300, 1 << 24, (1 << 24) + 1, 1 << 40, (1 << 63) - 1, 1 << 63, 1 << 70,
    -1, 128, "x", "1", "NaN", "a:b", "aGk=", "", {"b64": "aGk="}, {"b64": "!"}, {"b64": 1}, {}, [], [1], [[1]],
]  # fmt: skip


def _flat(values: Any) -> list[Any]:
    return [each for value in values for each in _flat(value)] if isinstance(values, list) else [values]


class _Maker:
    """Makes bodies of one datatype, valid ones as long as `oddity` is 0."""

    def __init__(self, random: Random, datatype: DataType) -> None:
        self.random = random
        self.datatype = datatype
        #: The probability that a part of a body is odd.
        self.oddity = 0.0

    def is_odd(self) -> bool:
        return self.random.random() < self.oddity

    def pick(self, usual: Sequence[Any], odd: Sequence[Any]) -> Any:
        return self.random.choice(odd if self.is_odd() else usual)

    def value(self) -> Any:
        if self.datatype is DataType.BYTES:
            usual: Sequence[Any] = ["YWI=", "aGk=", ""]
        elif self.datatype is DataType.BOOL:
            usual = [True, False]
        elif self.datatype.value.startswith("FP"):
            usual = [0.5, 2.0, 3e-7, 1.25] if self.is_float_only else [0.5, 2, 3e-7, 100]
        else:
            usual = range(100)
        return self.pick(usual, ODD)

    is_float_only = False

    def elements(self, shape: Sequence[int]) -> Any:
        """Nested lists of `shape`."""
        if not shape:
            return self.value()
        nested = [self.elements(shape[1:]) for _ in range(max(0, shape[0] + self.pick([0], [-1, 1, 0, 0, 0])))]
        return [nested] if self.is_odd() and self.random.random() < 0.1 else nested

    def raw(self, shape: Sequence[int]) -> bytes:
        """The bytes of a tensor."""
        count = int(np.prod(shape)) * (self.datatype.item_bytes or 4) + self.pick([0], [1, -1, 0, 0])
        return bytes([self.random.randrange(3)]) * max(0, count)

    def meddled(self, body: _Object) -> _Object:
        """`body`, or if odd with a member that is repeated, lost, moved or added."""
        extra = [("batch_size", 2), ("x", "a:b"), ("inputs", 1), ("instances", [1]), ("data", [1]), ("id", "z"), ("shape", [1])]
        if not self.is_odd() or not body:
            return body
        return self.random.choice(
            [
                _Object([*body, self.random.choice(body)]),
                _Object(body[1:]),
                _Object([*body, self.random.choice(extra)]),
                _Object(body[::-1]),
            ]
        )

    def written(self, body: _Object) -> bytes:
        """The text of `body`."""
        text = _text(self.meddled(body))
        if self.is_odd():
            changes = [("INPUT0", "INPUT\\u0030"), (":", " :\n"), ("a:b", "a\\u003ab"), ("]", "]]"), ("[", "[[["), ("1", "01"), (",", ",,")]
            text = text.replace(*self.random.choice(changes), self.random.choice([1, -1]))
        return text.encode()

    def kserve_json(self, structure: _Structure) -> tuple[bytes, str | None]:
        tensors, raw = [], b""
        is_binary = structure.is_binary and self.datatype is not DataType.BYTES
        for name in structure.names:
            written = self.pick([self.datatype.value], ["INT8", 5])
            tensor = _Object([("name", name), ("datatype", written), ("shape", self.pick([structure.shape], [(1,), (True,), ()]))])
            if is_binary:
                content = self.raw(structure.shape)
                raw += content
                tensor.append(("parameters", {"binary_data_size": len(content) + self.pick([0], [0, 1])}))
            else:
                values = self.elements(structure.shape)
                tensor.append(("data", _flat(values) if self.random.random() < 0.5 else values))
            tensors.append(self.meddled(tensor))
        body = _Object([("inputs", tensors)])
        if structure.is_extended:
            parameters = [{"triton_x": 1}, {"mine": [1]}, {"mine": False}, {"binary_data_output": 1}]
            body.append(("parameters", self.pick([{"priority": 1, "mine": "a:b", "true": True}], parameters)))
            body.append(("outputs", [{"name": self.pick(["OUTPUT"], ["other"])}] * self.pick([1], [2])))
        if self.random.random() < 0.7:
            body.insert(0, ("id", self.pick(["", "7", "a:b", "e", "true"], [5, "x" * 2000])))
        text = self.written(body)
        return (text + raw, str(len(text))) if is_binary else (text, None)

    def kserve_message(self, structure: _Structure) -> bytes:
        message = grpc_service_pb2.ModelInferRequest(model_name="m")
        message.id = self.pick(["", "7", "a" * 200], ["x" * 2000])
        message.model_version = self.pick([structure.version], ["x", "9"])
        for name in structure.names:
            tensor = message.inputs.add(name=name, datatype=self.pick([self.datatype.value], ["INT8"]), shape=structure.shape)
            if structure.is_binary:
                message.raw_input_contents.append(self.raw(structure.shape))
            else:
                tensor.contents.int_contents.extend(range(int(np.prod(structure.shape)) + self.pick([0], [0, 1])))
            if self.is_odd():
                tensor.parameters["x"].string_param = "y"
        if self.is_odd() and message.raw_input_contents:
            message.raw_input_contents.append(self.raw(structure.shape))
        if structure.is_extended:
            message.parameters[self.pick(["mine", "priority"], ["triton_x"])].int64_param = self.random.randrange(2)
            for _ in range(self.pick([1], [2])):
                message.outputs.add(name=self.pick(["OUTPUT"], ["other"]))
        return message.SerializeToString()

    def tfs_json(self, structure: _Structure) -> bytes:
        members = _Object((name, self.elements(structure.shape)) for name in structure.names)
        body = _Object()
        if structure.is_extended:
            body.append(("signature_name", self.pick(["serving_default", ""], ["other", 5])))
        is_plain = len(members) == 1 and self.random.random() < 0.3
        if structure.is_binary:
            body.append(("inputs", members[0][1] if is_plain else self.meddled(members)))
        elif is_plain:
            body.append(("instances", members[0][1]))
        else:
            rows: list[Any] = []
            for at in range(structure.shape[0] if structure.shape else 1):
                row = _Object([(name, each[at]) for name, each in members if isinstance(each, list) and at < len(each)])
                rows.append(row[0][1] if row and self.is_odd() and self.is_odd() else self.meddled(row))
            body.append(("instances", rows))
        return self.written(body)

    def _fill(self, message: Any, structure: _Structure) -> bytes:
        message.model_spec.name = "m"
        if structure.version or self.is_odd():
            message.model_spec.version.value = self.pick([int(structure.version or 1)], [0, 9])
        elif structure.is_extended:
            message.model_spec.version_label = self.pick(["stable"], ["other"])
        if structure.is_extended:
            message.model_spec.signature_name = self.pick(["serving_default"], ["other"])
        for name in structure.names:
            tensor = message.inputs[name]
            tensor.dtype = self.pick([structure.dtype], [0, 1, 3])
            if not self.is_odd():
                for size in structure.shape:
                    tensor.tensor_shape.dim.add(size=size)
            forms = self.pick([("content",) if structure.is_binary else ("values",)], [("values", "content"), ("other",), ("one",), ()])
            if "content" in forms:
                tensor.tensor_content = self.raw(structure.shape)
            if forms and forms != ("content",):
                field = self.random.choice(["int64_val", "float_val", "int_val", "string_val"]) if "other" in forms else None
                values = getattr(tensor, field or VALUE_FIELDS[self.datatype])
                is_text = (field or VALUE_FIELDS[self.datatype]) == "string_val"
                count = 1 if "one" in forms else int(np.prod(structure.shape)) + self.pick([0], [0, 1, -1])
                for _ in range(count):
                    values.append(b"a" if is_text else self.random.randrange(2) if field else self.pick([0, 1], [0, 1]))
                if self.is_odd() and VALUE_FIELDS[self.datatype] in ("int_val", "half_val") and not field:
                    values.append(self.random.choice([70_000, -1, 200]))
        return bytes(message.SerializeToString())

    def tfs_message(self, structure: _Structure) -> bytes:
        filters = [["OUTPUT"]] if structure.is_extended else [[]]
        return self._fill(predict_pb2.PredictRequest(output_filter=self.pick(filters, [["other"], ["OUTPUT"] * 2])), structure)

    def adlik_message(self, structure: _Structure) -> bytes:
        message = adlik_pb2.PredictRequest(batch_size=self.pick([structure.rows], [0, 9, 2]))
        if structure.is_extended:
            message.output_filter[self.pick(["OUTPUT"], ["other"])].cls.count = self.random.randrange(3)
        return self._fill(message, structure)

    def adlik_json(self, structure: _Structure) -> bytes:
        tensors = _Object()
        for name in structure.names:
            tensor = _Object()
            if structure.dtype:
                tensor.append(("dtype", self.pick([structure.dtype], ["DT_FLOAT", "x"])))
            if structure.is_extended:
                dims = [{"size": self.random.choice([size, str(size)])} for size in structure.shape]
                tensor.append(("tensor_shape", {"dim": self.pick([dims], [dims[1:], dims[::-1]])}))
            field = VALUE_FIELDS[self.datatype]
            camel = field.replace("_v", "V")
            if structure.is_binary:
                tensor.append((self.random.choice([CONTENT, "tensorContent"]), b64encode(self.raw(structure.shape)).decode()))
            else:
                tensor.append((self.pick([field, camel], ["int_val", "int64_val"]), _flat(self.elements(structure.shape))))
            if self.is_odd():
                tensor.append(self.random.choice([(field, [1]), (camel, []), (CONTENT, "!"), (CONTENT, ""), (CONTENT, 5), (CONTENT, None)]))
            tensors.append((name, self.meddled(tensor)))
        body = _Object([("batch_size", self.pick([structure.rows, str(structure.rows)], [0, "x", 9])), ("inputs", tensors)])
        if structure.is_extended:
            body.append(("output_filter", {self.pick(["OUTPUT"], ["other"]): {"cls": {"count": self.random.randrange(3)}}}))
            body.append(("model_spec", {"version": self.pick([1, "1"], [2, "x"])}))
        return self.written(body)


CODECS: dict[str, tuple[Callable[[_Engine], Decode], Callable[[_Maker, _Structure], Any]]] = {
    "kserve http": (_kserve_json, _Maker.kserve_json),
    "kserve grpc": (_kserve_message, _Maker.kserve_message),
    "tfs rest": (_tfs_json, _Maker.tfs_json),
    "tfs grpc": (_tfs_message, _Maker.tfs_message),
    "adlik rest": (_adlik_json, _Maker.adlik_json),
    "adlik grpc": (_adlik_message, _Maker.adlik_message),
}


def _model(datatype: DataType, dims: tuple[int, ...], names: Sequence[str], most_rows: int) -> FakeModel:
    inputs = [TensorSpec(name, datatype, dims, optional=name == "INPUT1") for name in names]
    made = model("m", signature(inputs, [TensorSpec("OUTPUT", DataType.FP32, dims)], most_rows), dict)
    made.versions = (1, 2)
    made.version_labels = {"stable": 1}
    return made


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_request_is_decoded_with_the_memo_as_without(codec: str, seed: int):
    """Valid requests of some structures teach the plans; odd ones follow, of which most have a structure that is known."""
    make_codec, make_body = CODECS[codec]
    random = Random(seed)
    datatype = random.choice(DATATYPES)
    maker = _Maker(random, datatype)
    maker.is_float_only = random.random() < 0.5
    dims = random.choice([(2,), (-1,), (1,), (2, 1), (), (-1, 2)])
    rows = random.randrange(3)
    names = ("INPUT0", "INPUT1")[: random.randint(1, 2)]
    models = [
        _model(datatype, dims, names, 2 if rows else 0),
        _model(datatype, dims, names, 2 if rows else 0),
        _model(datatype, dims, ("INPUT0",), 2 if rows else 0),
        _model(random.choice(DATATYPES), random.choice([dims, (3,)]), ("INPUT0", "INPUT1"), 4),
    ]
    structures = []
    for _ in range(3):
        sizes = tuple(random.choice([0, 1, 2, 2, 3]) if size < 0 else size for size in dims)
        shape = (rows, *sizes) if rows else sizes
        is_binary, is_extended = random.random() < 0.5, random.random() < 0.5
        version, dtype = random.choice(["", "1"]), random.choice([NUMBERS[datatype]] * 3 + [0])
        structures.append(_Structure(shape, random.choice([names, ("INPUT0",)]), is_binary, is_extended, version, dtype, rows or 1))
    engine = _Engine(models[0])
    known = make_codec(engine)
    for structure in structures:
        maker.oddity = 0.0
        bodies = [make_body(maker, structure)]
        for _ in range(8):
            maker.oddity = random.choice([0.0, 0.02, 0.05, 0.1])
            bodies.append(make_body(maker, random.choice([structure] * 4 + structures)))
        for body in bodies:
            assert _outcome(engine, known, body) == _outcome(engine, make_codec(engine), body)
            if random.random() < 0.1:
                engine.models = random.choice([{"m": each} for each in [*models, models[0], models[0]]] + [{}])
        engine.models = {"m": models[0]}
