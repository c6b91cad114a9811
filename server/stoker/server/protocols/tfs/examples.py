"""Classify, Regress and MultiInference: tf.Examples to arrays, one input per feature, and their results.

TensorFlow models parse serialised Examples themselves. Here the values of a feature, in row-major order, are one sample of the input with
the same name. A feature without an input is ignored, as a parsing model ignores it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from stoker.backends.api.errors import InvalidRequest, ServingError, Unsupported
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_proto import check_expansion, repeated_bytes, type_name
from stoker.server.codecs.tensors import object_array
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array, InferResponse, Via, run_while_borrowed
from stoker.server.core.tasks import run_off_loop
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow.core.example import example_pb2
from stoker.server.pb.tensorflow_serving.apis import classification_pb2, inference_pb2, input_pb2, regression_pb2
from stoker.server.protocols.tfs.json_codec import decoded, float_array, is_base64, kind_name, shown
from stoker.server.protocols.tfs.model_spec import (
    CLASSIFY,
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    REGRESS,
    REGRESS_METHOD,
    ClassifyOutputs,
    ModelQuery,
    classify_outputs,
    read_spec,
    regress_output,
)
from stoker.server.protocols.tfs.predict import Target, Targets, infer_request

Values = Sequence[Any]
"""The values of a feature: all integers, all floats, or all bytes."""
Features = Mapping[str, Values]


class Examples(NamedTuple):
    """A list of Examples.

    Attributes:
        own: The features of each Example.
        context: Features that each Example has in addition, unless it has one with the same name.
    """

    own: Sequence[Features]
    context: Features


_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})
_KINDS: Final = {int: "int64", float: "float", bytes: "string"}
_INT64: Final = (-(1 << 63), (1 << 63) - 1)


def read_input(given: input_pb2.Input) -> Examples:
    """The examples of `given`. Safe in a thread.

    Raises:
        InvalidRequest: there are none.
    """
    kind = given.WhichOneof("kind")
    if kind == "example_list_with_context":
        listed = given.example_list_with_context
        examples = Examples([_features(each) for each in listed.examples], _features(listed.context))
    else:
        examples = Examples([_features(each) for each in given.example_list.examples], {})
    if not examples.own:
        raise InvalidRequest("Input is empty.")
    return examples


def read_body(body: Mapping[str, Json], method: str) -> Examples:
    """The examples of the REST body of `:classify` or `:regress` (`method`). Safe in a thread.

    Raises:
        InvalidRequest: there are none, or one is no object of plain values.
    """
    given = body.get("examples")
    if "examples" not in body:
        raise InvalidRequest(f"JSON Value: {shown(body)} When method is {method}, key 'examples' is expected and was not found")
    if not isinstance(given, list):
        raise InvalidRequest(f"JSON Value: {shown(body)} Expecting 'examples' value to be an list/array")
    if not given:
        raise InvalidRequest(f"JSON Value: {shown(body)} 'examples' value is an empty array")
    context = _json_features(body["context"]) if "context" in body else {}
    return Examples([_json_features(each) for each in given], context)


def repeated(examples: Examples, check: SignatureCheck, limits: Limits) -> int:
    """Memory of the context's values in `arrays`, in bytes: they are repeated for each example without its own values.

    Raises:
        TooLarge: the expansion exceeds the limit of one request.
    """
    grown_bytes = 0
    if len(examples.own) > max(1, check.signature.request_rows):
        return 0  # rejected before any array is made
    for name, values in examples.context.items():
        spec = check.inputs.get(name)
        if spec is not None:
            times = sum(name not in each for each in examples.own)
            longest = max(values, key=len) if spec.datatype.is_bytes and values and isinstance(values[0], bytes) else b""
            grown_bytes += repeated_bytes(spec, longest, times * len(values))
            check_expansion(grown_bytes, name, limits)
    return grown_bytes


def arrays(examples: Examples, check: SignatureCheck) -> dict[str, Array]:
    """Converts the examples' features to arrays `[len(examples.own), *dims]` by input. Safe in a thread.

    REQUIRES: the model is batched, and the memory of repeated values is reserved, see `repeated`.

    Raises:
        InvalidRequest: a feature is missing, or has a wrong type or number of values for its input.
    """
    found: dict[str, Array] = {}
    for name, spec in check.inputs.items():
        shared = examples.context.get(name)
        columns = [each.get(name, shared) for each in examples.own]
        if all(each is None for each in columns) and spec.optional:
            continue
        shape = (len(columns), *_sample_shape(spec, columns))
        check.count_elements(spec, spec.datatype.value, shape)
        flat: list[Any] = []
        for index, values in enumerate(columns):
            if values is None:
                known = ", ".join(sorted({*examples.own[index], *examples.context})[:16]) or "none"
                raise InvalidRequest(
                    f"Name: example {index}, Feature: {name} (data type: {type_name(spec.datatype)}) is required; it has {known}"
                )
            flat.extend(values)
        found[name] = _array(flat, spec).reshape(shape)
    return found


def _sample_shape(spec: TensorSpec, columns: Sequence[Values | None]) -> tuple[int, ...]:
    """The shape of one sample; one variable dimension follows from the number of values, which is the same in every example."""
    counts = {len(values) for values in columns if values is not None}
    if len(counts) > 1:
        raise InvalidRequest(f"Feature: {spec.name} has {min(counts)} values in one example and {max(counts)} in another")
    count = counts.pop() if counts else 0
    known, open_dims = 1, 0
    for size in spec.dims:
        known *= size if size != VARIABLE else 1
        open_dims += size == VARIABLE
    if open_dims == 1 and known and count % known == 0:
        return tuple(count // known if size == VARIABLE else size for size in spec.dims)
    if open_dims or count != known:
        raise InvalidRequest(f"Feature: {spec.name} has {count} values in an example, but the input takes shape {list(spec.dims)}")
    return spec.dims


def _array(values: list[Any], spec: TensorSpec) -> Array:
    kinds = set(map(type, values))
    datatype = spec.datatype
    wanted: frozenset[type] = frozenset({bytes} if datatype is DataType.BYTES else {int, float} if datatype in _FLOATS else {int})
    if datatype is DataType.BF16 or not kinds <= wanted:
        came = "/".join(sorted(_KINDS[kind] for kind in kinds))
        raise InvalidRequest(f"Feature: {spec.name}. Data types don't match. Data type: {came} but expected type: {type_name(datatype)}")
    if datatype is DataType.BYTES:
        return object_array(values, (len(values),))
    if datatype is DataType.BOOL:
        truth: Array = np.array(values, dtype=np.int64) != 0
        return truth
    if datatype in _FLOATS:
        floats, wrong = float_array(values, kinds, datatype)
        if wrong is not None:
            raise InvalidRequest(f"Feature: {spec.name} has the value {wrong}, which {type_name(datatype)} cannot hold")
        return floats
    try:
        array: Array = np.array(values, dtype=datatype.numpy)
    except OverflowError:
        raise InvalidRequest(f"Feature: {spec.name} has a value outside the range of {type_name(datatype)}") from None
    return array


def _features(example: example_pb2.Example) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            found[name] = getattr(feature, kind).value
    return found


def _json_features(given: Json) -> dict[str, Values]:
    if not isinstance(given, dict):
        raise InvalidRequest(f"Example must be JSON object but got JSON {kind_name(given)}")
    return {name: _json_values(name, value if isinstance(value, list) else [value]) for name, value in given.items()}


def _json_values(name: str, given: list[Json]) -> Values:
    values = [_json_value(name, each) for each in given]
    kinds = set(map(type, values))
    # In TensorFlow Serving the first value decides the type; here whole numbers among fractions become floats if that is exact.
    if len(kinds) > 1 and kinds != {int, float}:
        raise InvalidRequest(f"Unexpected element type in feature: {name[:128]} expecting type: {_KINDS[type(values[0])]}")
    return values


def _json_value(name: str, value: Json) -> int | float | bytes:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if is_base64(value):
        return decoded(value)
    if isinstance(value, int) and not _INT64[0] <= value <= _INT64[1]:
        raise InvalidRequest(f"Feature: {name[:128]} has uint64 element. Only int64 is supported.")
    if not isinstance(value, (int, float)):
        raise InvalidRequest(f"Feature: {name[:128]} has element with unexpected JSON type: {kind_name(value)}")
    return value


_Outputs = TypeVar("_Outputs")
_SIGNATURES = {CLASSIFY_METHOD: CLASSIFY, REGRESS_METHOD: REGRESS}
#: Up to this many values of all examples together are converted to arrays on the event loop.
_INLINE_VALUES = 16_384


class Classified(NamedTuple):
    """The result of Classify: the version that responded, and each sample's (label, score) pairs in the model's order."""

    version: int
    samples: list[list[tuple[str, float]]]


class Regressed(NamedTuple):
    """The result of Regress: the version that responded, and one number per sample."""

    version: int
    values: list[float]


class ExampleInference:
    """Handles requests that hold Examples. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, targets: Targets) -> None:
        self._engine = engine
        self._limits = limits
        self._targets = targets

    async def classify(self, query: ModelQuery, examples: Examples, size_bytes: int, deadline_ns: int | None, via: Via) -> Classified:
        """The classes of `examples`, whose request had `size_bytes`.

        Raises:
            FailedPrecondition: the model has no classification outputs. InvalidRequest: the examples do not match its inputs. Also the
                exceptions of `Engine.infer`.
        """
        target, outputs = self._target(query, CLASSIFY_METHOD, via, classify_outputs)
        response = await self._run(target, examples, outputs.names, size_bytes, deadline_ns, via)
        labels: Sequence[str] = ()
        if outputs.scores is not None and outputs.classes is None:
            labels = self._engine.labels(query.name, response.model_version, outputs.scores.name)
        return Classified(response.model_version, _classes(response, outputs, labels, self._limits))

    async def regress(self, query: ModelQuery, examples: Examples, size_bytes: int, deadline_ns: int | None, via: Via) -> Regressed:
        """The numbers of `examples`.

        Raises:
            As `classify`.
        """
        target, output = self._target(query, REGRESS_METHOD, via, regress_output)
        response = await self._run(target, examples, (output.name,), size_bytes, deadline_ns, via)
        return Regressed(response.model_version, response.outputs[output.name].reshape(-1).astype(np.float32).tolist())

    def _target(
        self, query: ModelQuery, method: str, via: Via, outputs_of: Callable[[ModelSignature], _Outputs]
    ) -> tuple[Target, _Outputs]:
        """The model, and the outputs that `method` returns; a rejected request is counted with the model's name."""
        try:
            target = self._targets.find(query)
            if query.signature_name not in ("", DEFAULT_SIGNATURE, _SIGNATURES[method]):
                raise InvalidRequest(f"No signature was found with the name: {query.signature_name[:128]}")
            return target, outputs_of(target.check.signature)
        except ServingError as error:
            self._engine.count_rejected(query.name, query.version, error, via)
            raise

    async def _run(
        self, target: Target, examples: Examples, outputs: tuple[str, ...], size_bytes: int, deadline_ns: int | None, via: Via
    ) -> InferResponse:
        with Reservation(self._engine.budget) as grown:
            try:
                grown_bytes = repeated(examples, target.check, self._limits)
                if grown_bytes:
                    grown.take(grown_bytes)
                if max(size_bytes, grown_bytes) > self._limits.decode_inline_bytes or len(examples.own) > _INLINE_VALUES:
                    inputs = await run_while_borrowed(target.servable, arrays, examples, target.check)
                else:
                    inputs = arrays(examples, target.check)
                request = infer_request(target, inputs, outputs, size_bytes=size_bytes, deadline_ns=deadline_ns, via=via)
            except ServingError as error:
                self._engine.count_rejected(target.query.name, target.query.version, error, via)
                raise
            return await self._engine.infer(request)


def _classes(response: InferResponse, outputs: ClassifyOutputs, labels: Sequence[str], limits: Limits) -> list[list[tuple[str, float]]]:
    scores = None if outputs.scores is None else response.outputs[outputs.scores.name].astype(np.float32)
    classes = None if outputs.classes is None else response.outputs[outputs.classes.name]
    shapes = {array.shape for array in (scores, classes) if array is not None}
    if len(shapes) > 1:
        raise InvalidRequest(f"Tensors class and score should match in dim_size(1). Got {' vs. '.join(map(str, sorted(shapes)))}")
    rows, count = shapes.pop()
    if rows * count > limits.class_count:
        raise InvalidRequest(f"{rows} samples of {count} classes are more than the {limits.class_count} that one response may hold")
    texts: list[Any] = [list(labels[:count]) + [""] * (count - len(labels))] * rows if classes is None else classes.tolist()
    numbers: list[Any] = [[0.0] * count] * rows if scores is None else scores.tolist()
    return [
        [(_text(label), score) for label, score in zip(row_texts, row_numbers, strict=True)]
        for row_texts, row_numbers in zip(texts, numbers, strict=True)
    ]


def _text(label: bytes | str) -> str:
    return label if isinstance(label, str) else label.decode(errors="replace")


M = TypeVar("M", bound=Message)
#: Memory per byte on the wire: an empty feature has four bytes there, and takes a message and its map entry in memory.
_EXPANSION: Final = 48
#: Most tasks of one MultiInferenceRequest.
_MOST_TASKS: Final = 64


class ExampleCalls:
    """Handles the messages that hold Examples. Confined to: the event loop."""

    def __init__(self, engine: Engine, limits: Limits, inference: ExampleInference) -> None:
        self._engine = engine
        self._limits = limits
        self._inference = inference

    async def classify(self, data: bytes, deadline_ns: int | None) -> Message:
        """Handles a serialised ClassificationRequest.

        Raises:
            ServingError: as `ExampleInference.classify`; InvalidRequest: `data` is no such message.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, classification_pb2.ClassificationRequest, reservation)
            query, examples = read_spec(request.model_spec), await self._examples(request.input, data)
            found = await self._inference.classify(query, examples, len(data), deadline_ns, Via.TFS_GRPC)
            return classification_pb2.ClassificationResponse(result=_classification(found), model_spec=query.response_spec(found.version))

    async def regress(self, data: bytes, deadline_ns: int | None) -> Message:
        """Handles a serialised RegressionRequest.

        Raises:
            ServingError: as `classify`.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, regression_pb2.RegressionRequest, reservation)
            query, examples = read_spec(request.model_spec), await self._examples(request.input, data)
            found = await self._inference.regress(query, examples, len(data), deadline_ns, Via.TFS_GRPC)
            return regression_pb2.RegressionResponse(result=_regression(found), model_spec=query.response_spec(found.version))

    async def multi_inference(self, data: bytes, deadline_ns: int | None) -> Message:
        """Handles a serialised MultiInferenceRequest; its tasks run one after the other.

        Raises:
            ServingError: as `classify`; InvalidRequest: also if the tasks name several models, or two are the same.
        """
        with Reservation(self._engine.budget) as reservation:
            request = await self._parsed(data, inference_pb2.MultiInferenceRequest, reservation)
            tasks = [(read_spec(task.model_spec), task.method_name) for task in request.tasks]
            _check_tasks(tasks)
            examples = await self._examples(request.input, data)
            response = inference_pb2.MultiInferenceResponse()
            for query, method in tasks:
                entry = response.results.add()
                found: Classified | Regressed
                if method == CLASSIFY_METHOD:
                    found = await self._inference.classify(query, examples, len(data), deadline_ns, Via.TFS_GRPC)
                    entry.classification_result.CopyFrom(_classification(found))
                else:
                    found = await self._inference.regress(query, examples, len(data), deadline_ns, Via.TFS_GRPC)
                    entry.regression_result.CopyFrom(_regression(found))
                entry.model_spec.CopyFrom(query.response_spec(found.version))
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
    if len({query.name for query, _ in tasks}) > 1:
        raise InvalidRequest(f"All ModelSpecs in a MultiInferenceRequest must access the same model name: {tasks[0][0].name[:128]}")
    for _, method in tasks:
        if method not in (CLASSIFY_METHOD, REGRESS_METHOD):
            raise Unsupported(f"Unsupported signature method_name: {method[:128]}")
    if len({(query.signature_name, method) for query, method in tasks}) < len(tasks):
        raise InvalidRequest("Duplicate evaluation of signature: two tasks have the same method and signature_name")


def _classification(found: Classified) -> classification_pb2.ClassificationResult:
    result = classification_pb2.ClassificationResult()
    for sample in found.samples:
        result.classifications.add(classes=[classification_pb2.Class(label=label, score=score) for label, score in sample])
    return result


def _regression(found: Regressed) -> regression_pb2.RegressionResult:
    return regression_pb2.RegressionResult(regressions=[regression_pb2.Regression(value=value) for value in found.values])
