"""Complete configurations, as Triton's onnxruntime backend completes them from a model file and a partial configuration.

Where this server differs on purpose is said in `DEFAULTS`: one instance with all cores, not two (docs/adr/0004), and no pinned memory.
"""

from pathlib import Path

import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper

from stoker.backends.api.errors import BackendSettingError
from stoker.backends.onnx.backend import OnnxRuntimeBackend
from stoker.server.config.complete import complete
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.pb import model_config_pb2 as pb
from tests.fakes.onnx_models import model, onnx_files, value

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
DEFAULTS = """
name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" default_model_filename: "model.onnx"
version_policy { latest { num_versions: 1 } }
instance_group { name: "m" count: 1 kind: KIND_CPU }
optimization { input_pinned_memory { } output_pinned_memory { } }
"""
BATCHES = "dynamic_batching { preferred_batch_size: [ 32 ] }"
#: A row of the model is a scalar.
VECTOR_TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }
output { name: "y" data_type: TYPE_INT64 dims: [ 1 ] reshape { } }
"""


def file_of(inputs, outputs):
    """A file with these declarations and any computation."""
    nodes = [helper.make_node("Identity", [inputs[0].name], [output.name]) for output in outputs]
    return model(nodes, inputs, outputs)


BATCHABLE = file_of([value("x", ("n", 3, "w"), FLOAT), value("s", ("n", 1), STRING)], [value("y", (None, 10), FLOAT)])
VECTORS = file_of([value("x", ("n",), FLOAT)], [value("y", ("n",), INT64)])
FIXED = file_of([value("x", (1, 3), FLOAT)], [value("y", ("n", 10), FLOAT)])
FIXED_OUT = file_of([value("x", ("n", 3), FLOAT)], [value("y", (1, 10), FLOAT)])
SCALARS = file_of([value("x", (), FLOAT)], [value("y", (), FLOAT)])

ROWS = {
    "nothing written, every first dimension open": (
        BATCHABLE,
        "",
        f"""max_batch_size: 32 {BATCHES}
        input {{ name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] }} input {{ name: "s" data_type: TYPE_STRING dims: [ 1 ] }}
        output {{ name: "y" data_type: TYPE_FP32 dims: [ 10 ] }}""",
    ),
    "a row that is a scalar is offered as a vector of one": (
        VECTORS,
        "",
        f"""max_batch_size: 32 {BATCHES}
        {VECTOR_TENSORS}""",
    ),
    "an input with a fixed first dimension": (
        FIXED,
        "",
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1, 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 10 ] }',
    ),
    "an output with a fixed first dimension": (
        FIXED_OUT,
        "",
        'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 1, 10 ] }',
    ),
    "scalars": (
        SCALARS,
        "",
        VECTOR_TENSORS.replace("INT64", "FP32"),
    ),
    "a batch size that is written is kept": (
        VECTORS,
        "max_batch_size: 16",
        'max_batch_size: 16 dynamic_batching { preferred_batch_size: [ 16 ] } ' + VECTOR_TENSORS,
    ),
    "a batch size of one needs no scheduler": (
        VECTORS,
        "max_batch_size: 1",
        'max_batch_size: 1 ' + VECTOR_TENSORS,
    ),
    "a scheduler that is written is kept": (
        VECTORS,
        "dynamic_batching { max_queue_delay_microseconds: 7 preferred_batch_size: 2 }",
        'max_batch_size: 32 dynamic_batching { max_queue_delay_microseconds: 7 preferred_batch_size: [ 2 ] } ' + VECTOR_TENSORS,
    ),
    "only inputs written: outputs come from the file": (
        BATCHABLE,
        'max_batch_size: 8 input { name: "s" data_type: TYPE_STRING dims: [ 1 ] } input { name: "x" data_type: TYPE_FP32 dims: [ 3, 5 ] }',
        """max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] }
        input { name: "s" data_type: TYPE_STRING dims: [ 1 ] } input { name: "x" data_type: TYPE_FP32 dims: [ 3, 5 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 10 ] }""",
    ),
    "inputs and outputs written: nothing is completed": (
        FIXED,
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1, 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 10 ] }',
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1, 3 ] } output { name: "y" data_type: TYPE_FP32 dims: [ -1, 10 ] }',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_file_and_partial_config_are_merged_to_a_complete_one(name: str, tmp_path: Path):
    file, text, expected = ROWS[name]
    backend = OnnxRuntimeBackend()
    facts = backend.inspect(onnx_files(tmp_path, file), "model.onnx")
    parsed = parse_pbtxt(text, source="m/config.pbtxt", model_name="m") if text else empty_config("m")
    found = pb.ModelConfig.FromString(complete(parsed, facts, backend, "model.onnx").config.wire)
    assert found == text_format.Parse(DEFAULTS + expected, pb.ModelConfig())


def test_backends_default_batch_size_can_be_set(tmp_path: Path):
    backend = OnnxRuntimeBackend()
    backend.configure({"default-max-batch-size": "7"})
    facts = backend.inspect(onnx_files(tmp_path, VECTORS), "model.onnx")
    assert complete(empty_config("m"), facts, backend, "model.onnx").config.signature.max_batch_size == 7


@pytest.mark.parametrize(
    "settings", [{"other": "1"}, {"default-max-batch-size": "0"}, {"default-max-batch-size": "many"}, {"tuning": "on"}]
)
def test_unknown_backend_setting_is_named(settings: dict[str, str]):
    with pytest.raises(BackendSettingError, match=next(iter(settings))):
        OnnxRuntimeBackend().configure(settings)


def test_batches_of_a_file_that_cannot_batch_are_refused(tmp_path: Path):
    backend = OnnxRuntimeBackend()
    facts = backend.inspect(onnx_files(tmp_path, FIXED), "model.onnx")
    with pytest.raises(ConfigError, match="max_batch_size"):
        complete(parse_pbtxt("max_batch_size: 8", source="m/config.pbtxt", model_name="m"), facts, backend, "model.onnx")
