"""The model, version and signature that a TensorFlow Serving request addresses, and the protocol's error statuses.

A served model has one set of inputs and outputs: the signature `serving_default`. Where its outputs are suitable, the same model also
serves Classify and Regress, which take Examples, and so has the signatures `classify` and `regress`.
"""

import math
from typing import Final, NamedTuple

from stoker.backends.api.errors import Conflict, InvalidRequest, NotFound, Overloaded, QueueTimeout, ServingError, Unavailable
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_proto import NUMBERS, type_name
from stoker.server.core.limits import Limits
from stoker.server.core.state import ModelDescription
from stoker.server.engine.interface import Engine
from stoker.server.pb.tensorflow.core.protobuf import meta_graph_pb2
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2, model_pb2
from stoker.server.rpc.status import ABORTED, FAILED_PRECONDITION, UNAVAILABLE, Status, status_of


class FailedPrecondition(InvalidRequest):
    """The request is well-formed, but the model cannot serve it: it lacks the signature, or the labelled version is not loaded."""


#: TensorFlow Serving's statuses where they differ from the taxonomy: a full queue is UNAVAILABLE.
OVERRIDES: Final[dict[type, Status]] = {
    FailedPrecondition: Status(400, FAILED_PRECONDITION),
    Overloaded: Status(503, UNAVAILABLE),
    QueueTimeout: Status(503, UNAVAILABLE),
    Conflict: Status(409, ABORTED),
}


def tfs_status(error: ServingError) -> Status:
    """The status of `error` on TensorFlow Serving's protocol."""
    return status_of(error, OVERRIDES)


DEFAULT_SIGNATURE = "serving_default"


class ModelQuery(NamedTuple):
    """A ModelSpec.

    Attributes:
        name: The model's name.
        version: The requested number; None: no number is requested.
        label: The requested label; empty: none.
        signature_name: The requested signature; empty: the default one.
    """

    name: str
    version: int | None = None
    label: str = ""
    signature_name: str = ""

    @property
    def servable(self) -> str:
        """The requested servable in the form of TensorFlow Serving's error texts."""
        name = self.name[:128]
        return f"Latest({name})" if self.version is None else f"Specific({name}, {self.version})"

    def response_spec(self, version: int, *, signature: bool = True) -> model_pb2.ModelSpec:
        """The model spec of a response from `version`; `signature`: whether it includes the signature name."""
        spec = model_pb2.ModelSpec()
        self.fill_response(spec, version, signature=signature)
        return spec

    def fill_response(self, spec: model_pb2.ModelSpec, version: int, *, signature: bool = True) -> None:
        """As `response_spec`, into an empty `spec`."""
        spec.name = self.name
        spec.version.value = version
        if signature:
            spec.signature_name = self.signature_name or DEFAULT_SIGNATURE


def read_spec(spec: model_pb2.ModelSpec) -> ModelQuery:
    """Reads `spec`."""
    version = spec.version.value if spec.HasField("version") else None
    return ModelQuery(spec.name, version, spec.version_label, spec.signature_name)


def resolve(engine: Engine, query: ModelQuery, limits: Limits) -> ModelQuery:
    """Replaces the label of `query` by its version number.

    Raises:
        InvalidRequest: the name is empty or too long, or the model has no such label.
    """
    if not query.name:
        raise InvalidRequest("ModelSpec has no name specified")
    if max(len(query.name), len(query.label), len(query.signature_name)) > limits.name_length:
        raise InvalidRequest(f"model, label and signature names may have {limits.name_length} characters, not more")
    if not query.label:
        return query
    version = engine.labelled_version(query.name, query.label)
    if version is None:
        raise InvalidRequest(f"Unrecognized servable version label: {query.label}")
    return query._replace(version=version, label="")


def describe(engine: Engine, query: ModelQuery) -> ModelDescription:
    """The version that the resolved `query` currently selects.

    Raises:
        NotFound: no such model or version, or it is not READY, in TensorFlow Serving's words.
    """
    try:
        return engine.describe(query.name, query.version)
    except (NotFound, Unavailable):
        raise not_found(query) from None


def not_found(query: ModelQuery) -> NotFound:
    """The error for a model or version that is not served."""
    return NotFound(f"Servable not found for request: {query.servable}")


PREDICT_METHOD: Final = "tensorflow/serving/predict"
CLASSIFY_METHOD: Final = "tensorflow/serving/classify"
REGRESS_METHOD: Final = "tensorflow/serving/regress"
CLASSIFY, REGRESS = "classify", "regress"
# Names that TensorFlow gives the tensors of such signatures.
_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})


class ClassifyOutputs(NamedTuple):
    """The outputs that Classify uses: labels, scores, or both."""

    classes: TensorSpec | None
    scores: TensorSpec | None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the existing ones."""
        return tuple(spec.name for spec in self if spec is not None)


def classify_outputs(signature: ModelSignature) -> ClassifyOutputs:
    """The outputs that Classify returns: those called `classes` (strings) and `scores`, else the only output, a row of numbers.

    Raises:
        FailedPrecondition: the model has no such outputs, or no batch dimension.
    """
    _check_batched(signature, "classification")
    by_name = {spec.name: spec for spec in signature.outputs}
    classes, scores = by_name.get(_CLASSES), by_name.get(_SCORES)
    if classes is None and scores is None and len(signature.outputs) == 1:
        scores = signature.outputs[0]
    if classes is not None and (classes.datatype is not DataType.BYTES or len(classes.dims) != 1):
        classes = None
    if scores is not None and (scores.datatype not in _FLOATS or len(scores.dims) != 1):
        scores = None
    if classes is None and scores is None:
        raise FailedPrecondition(
            'Expected classification signature outputs to contain at least one of "classes" (strings) or "scores" (numbers), '
            f"each of shape [batch_size num_classes], or one output of numbers; the model has {_listed(signature.outputs)}"
        )
    return ClassifyOutputs(classes, scores)


def regress_output(signature: ModelSignature) -> TensorSpec:
    """The output that Regress returns: the one called `outputs`, else the only one; one number a sample.

    Raises:
        FailedPrecondition: the model has no such output, or no batch dimension.
    """
    _check_batched(signature, "regression")
    found = next((spec for spec in signature.outputs if spec.name == _OUTPUTS), None)
    if found is None and len(signature.outputs) == 1:
        found = signature.outputs[0]
    if found is None or found.datatype not in _FLOATS or VARIABLE in found.dims or math.prod(found.dims) != 1:
        raise FailedPrecondition(
            'Expected regression signature outputs to contain "outputs", or one output, of one number a sample; '
            f"the model has {_listed(signature.outputs)}"
        )
    return found


def signature_def_map(description: ModelDescription) -> get_model_metadata_pb2.SignatureDefMap:
    """All signatures of a served version."""
    signature = description.config.signature
    found = get_model_metadata_pb2.SignatureDefMap()
    default = found.signature_def[DEFAULT_SIGNATURE]
    default.method_name = PREDICT_METHOD
    for spec in signature.inputs:
        _describe(default.inputs[spec.name], spec, is_batched=signature.is_batched)
    for spec in signature.outputs:
        _describe(default.outputs[spec.name], spec, is_batched=signature.is_batched)
    examples = TensorSpec(_INPUTS, DataType.BYTES, ())
    try:
        classify = classify_outputs(signature)
    except FailedPrecondition:
        pass  # the model has no classification outputs
    else:
        entry = found.signature_def[CLASSIFY]
        entry.method_name = CLASSIFY_METHOD
        _describe(entry.inputs[_INPUTS], examples, is_batched=True)
        for alias, role in ((_CLASSES, classify.classes), (_SCORES, classify.scores)):
            if role is not None:
                _describe(entry.outputs[alias], role, is_batched=True)
    try:
        regress = regress_output(signature)
    except FailedPrecondition:
        return found
    entry = found.signature_def[REGRESS]
    entry.method_name = REGRESS_METHOD
    _describe(entry.inputs[_INPUTS], examples, is_batched=True)
    _describe(entry.outputs[_OUTPUTS], regress, is_batched=True)
    return found


def _check_batched(signature: ModelSignature, what: str) -> None:
    if not signature.is_batched:
        raise FailedPrecondition(f"{what} takes any number of Examples, but the model has no batch dimension (max_batch_size 0)")


def _describe(info: meta_graph_pb2.TensorInfo, spec: TensorSpec, *, is_batched: bool) -> None:
    info.name = f"{spec.name}:0"
    info.dtype = NUMBERS[spec.datatype]
    for size in (VARIABLE, *spec.dims) if is_batched else spec.dims:
        info.tensor_shape.dim.add(size=size)


def _listed(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"'{spec.name}' {type_name(spec.datatype)} {list(spec.dims)}" for spec in specs)
