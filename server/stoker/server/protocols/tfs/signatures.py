"""A model's signatures in TensorFlow's form.

A served model has one set of inputs and outputs: that is `serving_default`. Where its outputs are fit for it, the same model also answers
Classify and Regress, which take Examples, and so it has the signatures `classify` and `regress`.
"""

import math
from typing import Final, NamedTuple

from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.tensor_proto import NUMBERS, type_name
from stoker.server.core.state import ModelDescription
from stoker.server.pb.tensorflow.core.protobuf import meta_graph_pb2
from stoker.server.pb.tensorflow_serving.apis import get_model_metadata_pb2
from stoker.server.protocols.tfs.model_spec import DEFAULT_SIGNATURE
from stoker.server.protocols.tfs.status import FailedPrecondition

PREDICT_METHOD: Final = "tensorflow/serving/predict"
CLASSIFY_METHOD: Final = "tensorflow/serving/classify"
REGRESS_METHOD: Final = "tensorflow/serving/regress"
CLASSIFY, REGRESS = "classify", "regress"
# Names that TensorFlow gives the tensors of such signatures.
_INPUTS, _CLASSES, _SCORES, _OUTPUTS = "inputs", "classes", "scores", "outputs"
_FLOATS: Final = frozenset({DataType.FP16, DataType.FP32, DataType.FP64})


class ClassifyOutputs(NamedTuple):
    """Which outputs tell classes: labels, scores, or both."""

    classes: TensorSpec | None
    scores: TensorSpec | None

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that are there."""
        return tuple(spec.name for spec in self if spec is not None)


def classify_outputs(signature: ModelSignature) -> ClassifyOutputs:
    """What Classify answers with: the outputs called `classes` (strings) and `scores`, else the only output, a row of numbers.

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
    """What Regress answers with: the output called `outputs`, else the only one; one number a sample.

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
        pass  # the model is none that classifies
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
