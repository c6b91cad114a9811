"""`allow_ragged_batch`, `batch_input` and `batch_output` in a configuration."""

import pytest

from stoker.backends.api.model import FileTensor, ModelFacts, ModelSignature
from stoker.backends.api.ragged import BatchInput, BatchInputKind, BatchOutput
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError
from tests.fakes.named_backends import NamedBackend, onnx_like

FP32, INT32 = DataType.FP32, DataType.INT32
FACTS = ModelFacts(
    (FileTensor("x", FP32, (-1,)), FileTensor("ends", INT32, (-1,))),
    (FileTensor("y", FP32, (-1, 2)), FileTensor("twice", FP32, (-1,))),
)
X = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }\n'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }\n'
TWICE = 'output { name: "twice" data_type: TYPE_FP32 dims: [ -1 ] }\n'
ENDS = 'batch_input { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "x" }\n'
CUT = 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "twice" source_input: "x" }\n'


def ragged_backend(*, ragged: bool = True) -> NamedBackend:
    backend = onnx_like()
    backend.takes_ragged = ragged
    return backend


def signature_of(text: str, *, ragged: bool = True) -> ModelSignature:
    backend = ragged_backend(ragged=ragged)
    return complete(parse_pbtxt("max_batch_size: 8\n" + text, source="m", model_name="m"), FACTS, backend, "model.onnx").config.signature


def test_ragged_model_is_completed():
    signature = signature_of(X + Y + TWICE + ENDS + CUT)
    assert [(spec.name, spec.is_ragged) for spec in signature.inputs] == [("x", True)]
    assert signature.batch_inputs == (BatchInput(BatchInputKind.ACCUMULATED_ELEMENT_COUNT, "ends", INT32, "x"),)
    assert signature.batch_outputs == (BatchOutput("twice", "x"),)
    assert signature.is_ragged


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (X.replace("dims: [ -1 ]", "dims: [ -1 ] reshape { shape: [ -1, 1 ] }") + Y + TWICE + ENDS + CUT, "input[0].reshape"),
        (X + Y + TWICE + ENDS.replace("INT32", "INT64") + CUT, "batch_input[0].data_type"),
        (X + Y + TWICE + ENDS.replace('target_name: "ends"', "") + CUT, "batch_input[0].target_name"),
        (X + Y + TWICE + ENDS.replace('"ends"', '"x"') + CUT, "batch_input[0].target_name[0]"),
        (X + Y + TWICE + ENDS.replace('source_input: "x"', "") + CUT, "batch_input[0].source_input"),
        (X + Y + TWICE + ENDS.replace('source_input: "x"', 'source_input: "z"') + CUT, "batch_input[0].source_input"),
        (X + Y + TWICE + ENDS + CUT.replace('"twice"', '"thrice"'), "batch_output[0].target_name[0]"),
        (X + Y + TWICE + ENDS + CUT.replace('target_name: "twice"', ""), "batch_output[0].target_name"),
        (X + Y + TWICE + ENDS + CUT.replace('"x"', '"z"'), "batch_output[0].source_input"),
    ],
)
def test_contradictions_are_named(text, field):
    with pytest.raises(ConfigError) as caught:
        signature_of(text)
    assert field in [problem.field for problem in caught.value.problems]


def test_backend_without_ragged_batches_is_named():
    with pytest.raises(ConfigError, match="not supported by backend 'onnxruntime'"):
        signature_of(X + Y + TWICE + ENDS + CUT, ragged=False)


def test_model_file_with_a_batch_dimension_is_named_as_the_reason():
    facts = ModelFacts((FileTensor("x", FP32, (-1, 4)),), (FileTensor("y", FP32, (-1, 2)),))
    text = X.replace("dims: [ -1 ]", "dims: [ 4 ]") + Y
    with pytest.raises(ConfigError) as caught:
        complete(parse_pbtxt("max_batch_size: 8\n" + text, source="m", model_name="m"), facts, ragged_backend(), "model.onnx")
    [problem] = caught.value.problems
    assert (problem.field, problem.line) == ("input[0].allow_ragged_batch", 2)
    assert problem.message.startswith(
        "tensor 'x': the model file takes shape [-1, 4], but a ragged input reaches the model as one vector of all"
    )
