"""The completed configuration as foreign clients read it, and as text."""

import pytest

from stoker.backends.api.model import FileTensor, ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete, to_pbtxt
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.core.model_config import ModelConfig
from stoker.server.pb import model_config_pb2 as pb
from tests.fakes.named_backends import onnx_like

FACTS = ModelFacts((FileTensor("x", DataType.FP32, (-1, 8)),), (FileTensor("y", DataType.INT64, (-1,)),))


def completed(text: str) -> ModelConfig:
    return complete(parse_pbtxt(text, source="m/config.pbtxt", model_name="m"), FACTS, onnx_like(), "model.onnx").config


def wire(text: str) -> pb.ModelConfig:
    return pb.ModelConfig.FromString(completed(text).wire)


def test_wire_config_has_every_field_that_triton_sends() -> None:
    message = wire('platform: "onnx" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 }')
    assert (message.name, message.backend, message.platform) == ("m", "onnxruntime", "onnxruntime_onnx")
    assert message.default_model_filename == "model.onnx"
    assert message.version_policy.latest.num_versions == 1
    assert list(message.dynamic_batching.preferred_batch_size) == [8]
    (group,) = message.instance_group
    assert (group.name, group.count, group.kind) == ("m", 1, pb.ModelInstanceGroup.KIND_CPU)
    assert message.optimization.HasField("input_pinned_memory")
    assert [(tensor.name, list(tensor.dims), tensor.HasField("reshape")) for tensor in message.output] == [("y", [1], True)]


def test_configured_values_are_kept() -> None:
    message = wire("dynamic_batching { preferred_batch_size: 2 } version_policy { all { } } optimization { graph { level: 1 } }")
    assert list(message.dynamic_batching.preferred_batch_size) == [2]
    assert message.version_policy.WhichOneof("policy_choice") == "all"
    assert message.optimization.graph.level == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_batch_size: 1 instance_group { count: 2 }",
        'max_batch_size: 0 input { name: "x" dims: [-1, 8] }',
        "dynamic_batching { preferred_batch_size: [4, 2] max_queue_delay_microseconds: 9 preserve_ordering: true }",
        'parameters { key: "execution" value { string_value: "inline" } } metric_tags { key: "a" value: "\\"é\\n" }',
        "optimization { graph { level: 2 } } version_policy { specific { versions: [ 2, 5 ] } }",
    ],
)
def test_text_of_a_completed_configuration_completes_to_itself(text: str) -> None:
    first = completed(text)
    again = completed(to_pbtxt(first))
    assert again.wire == first.wire
    assert (again.signature, again.version_policy, again.instance_groups) == (first.signature, first.version_policy, first.instance_groups)


def test_adliks_queue_bound_survives_as_text() -> None:
    first = completed('platform: "onnx" max_batch_size: 4 dynamic_batching { max_enqueued_batches: 3 }')
    again = completed(to_pbtxt(first))
    assert first.max_enqueued_requests == 12
    assert again.dynamic_batching is not None
    assert again.dynamic_batching.default_queue_policy.max_queue_size == 12
