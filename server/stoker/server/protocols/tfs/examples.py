"""Examples, which Classify, Regress and MultiInference take, to arrays: each feature is the input of that name.

TensorFlow has models parse serialised Examples themselves. Here a feature's values, in row-major order, are one sample of the input that is
called like it; a feature that the model has no input for is ignored, as a parsing model ignores it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.model import VARIABLE, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.expansion import check_expansion, repeated_bytes
from stoker.server.codecs.strict_json import Json
from stoker.server.codecs.tensor_bytes import object_array
from stoker.server.codecs.tensor_proto import type_name
from stoker.server.codecs.validation import SignatureCheck
from stoker.server.core.limits import Limits
from stoker.server.core.request import Array
from stoker.server.pb.tensorflow.core.example import example_pb2
from stoker.server.pb.tensorflow_serving.apis import input_pb2
from stoker.server.protocols.tfs.json_values import decoded, float_array, is_base64, kind_name, shown

Values = Sequence[Any]
"""The values of a feature: all integers, all floats, or all bytes."""
Features = Mapping[str, Values]


class Examples(NamedTuple):
    """A list of Examples.

    Attributes:
        own: The features of each.
        context: Features that each of them has too, unless it has one of that name itself.
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
    """Memory of what `arrays` takes from the context, bytes: its values, once for each example that has none of its own.

    Raises:
        TooLarge: more than one request may grow by.
    """
    grown_bytes = 0
    if len(examples.own) > max(1, check.signature.max_batch_size):
        return 0  # refused before anything is made of it
    for name, values in examples.context.items():
        spec = check.inputs.get(name)
        if spec is not None:
            times = sum(name not in each for each in examples.own)
            longest = max(values, key=len) if spec.datatype.is_bytes and values and isinstance(values[0], bytes) else b""
            grown_bytes += repeated_bytes(spec, longest, times * len(values))
            check_expansion(grown_bytes, name, limits)
    return grown_bytes


def arrays(examples: Examples, check: SignatureCheck) -> dict[str, Array]:
    """The arrays `[len(examples.own), *dims]` of the inputs that the examples have features for. Safe in a thread.

    REQUIRES: the model is batched, and what is repeated was paid for, see `repeated`.

    Raises:
        InvalidRequest: a feature is missing, of another type, or has not as many values as one sample of its input takes.
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
    """The shape of one sample; one open dimension follows from the number of values, which is the same in every example."""
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
    # The first value decides in TensorFlow Serving; whole numbers among others are taken as what they are meant, if that is exact.
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
