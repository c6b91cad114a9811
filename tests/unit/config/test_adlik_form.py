"""Adlik's config.pbtxt: recognised, translated into Triton's form, and refused where the two contradict each other."""

import pytest

from stoker.backends.api.model import ModelFacts
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.core.model_config import ModelConfig, NoVersions
from stoker.server.pb import model_config_pb2 as pb
from tests.fakes.named_backends import NamedBackend

RESNET = """
name: "resnet"
platform: "topsinference"
platform_version: "2.4"
max_batch_size: 5
input { name: "input" data_type: DT_FLOAT format: FORMAT_NCHW dims: 3 dims: 224 dims: 224 }
output { name: "scores" data_type: DT_HALF dims: 1000 label_filename: "labels.txt" }
instance_group { count: 2 kind: KIND_AUTO }
dynamic_batching { preferred_batch_size: 5 max_queue_delay_microseconds: 10 max_enqueued_batches: 3 }
"""


def read(text: str) -> ParsedConfig:
    return parse_pbtxt(text, source="resnet/config.pbtxt", model_name="resnet")


def completed(text: str) -> ModelConfig:
    backend = NamedBackend("topsinference", "model.exec", platforms=("topsinference",))
    return complete(read(text), ModelFacts(inputs=None, outputs=None), backend, "model.exec").config


def test_adlik_configuration_is_translated() -> None:
    config = completed(RESNET)
    (image,), (scores,) = config.signature.inputs, config.signature.outputs
    assert (image.datatype, image.dims, scores.datatype) == (DataType.FP32, (3, 224, 224), DataType.FP16)
    assert config.dynamic_batching is not None
    assert (config.dynamic_batching.preferred_batch_sizes, config.dynamic_batching.max_queue_delay_us) == ((5,), 10)
    assert config.instance_groups[0].kind == "KIND_CPU"
    assert config.parameters["platform_version"] == "2.4"


def test_enqueued_batches_bound_the_queue_in_requests() -> None:
    config = completed(RESNET)
    assert config.max_enqueued_requests == 15
    assert pb.ModelConfig.FromString(config.wire).dynamic_batching.default_queue_policy.max_queue_size == 15


@pytest.mark.parametrize("name", [name for name in pb.DataType.keys() if name != "TYPE_INVALID"])  # noqa: SIM118 - not a dict
def test_every_element_type_has_a_tensorflow_name(name: str) -> None:
    spelling = {"FP16": "HALF", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16"}.get(name[5:], name[5:])
    parsed = read(f'input {{ name: "x" data_type: DT_{spelling} dims: 1 }}')
    assert pb.DataType.Name(parsed.message.input[0].data_type) == name
    assert parsed.is_adlik


def test_adlik_form_without_a_dynamic_batching_block_is_batched() -> None:
    batching = completed(RESNET[: RESNET.index("dynamic_batching")]).dynamic_batching
    assert batching is not None
    assert batching.max_queue_delay_us == 0


def test_triton_form_without_a_dynamic_batching_block_is_not_batched() -> None:
    text = 'max_batch_size: 4 input { name: "i" data_type: TYPE_FP32 dims: 1 } output { name: "o" data_type: TYPE_FP32 dims: 1 }'
    assert completed(text).dynamic_batching is None


@pytest.mark.parametrize(
    ("text", "is_adlik"),
    [
        ('platform: "topsinference" max_batch_size: 4', True),
        ('platform: "onnx" max_batch_size: 4', True),
        ('platform: "onnx" backend: "onnxruntime"', False),
        ('platform: "onnx" input { name: "x" data_type: TYPE_FP32 dims: 1 }', False),
        ('platform: "onnxruntime_onnx" max_batch_size: 4', False),
        ('backend: "onnxruntime" input { name: "x" data_type: DT_FLOAT dims: 1 }', True),
        ('platform_version: "1"', True),
        ('algorithm: "kmeans"', True),
        ("dynamic_batching { max_enqueued_batches: 1 }", True),
        ('model_warmup { inputs { key: "x" value { data_type: DT_FLOAT dims: 1 zero_data: true } } }', True),
        ("max_batch_size: 4", False),
    ],
)
def test_form_of_a_configuration_is_detected(text: str, is_adlik: bool) -> None:
    assert read(text).is_adlik is is_adlik


def test_mixture_without_duplicates_is_read() -> None:
    parsed = read(
        'backend: "onnx" input { name: "a" data_type: DT_FLOAT dims: 1 } output { name: "b" data_type: TYPE_FP32 dims: 1 reshape { } }'
    )
    assert parsed.message.input[0].data_type == parsed.message.output[0].data_type == pb.TYPE_FP32


def test_version_policy_none_serves_nothing() -> None:
    assert read("version_policy { none { } }").version_policy == NoVersions()


def test_padding_of_variable_lengths_is_reported_as_without_effect() -> None:
    (warning,) = read("dynamic_batching {\n pad_variable_length_inputs: true }").warnings
    assert warning.startswith("resnet/config.pbtxt:2: dynamic_batching.pad_variable_length_inputs: has no effect")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "version_policy { none {}\n latest { num_versions: 1 } }",
            "2: version_policy.latest: contradicts 'none' (first on line 1): at most one of latest, all, specific, none may be written",
        ),
        (
            "dynamic_batching { max_enqueued_batches: 1\n default_queue_policy {\n max_queue_size: 2 } }",
            "3: dynamic_batching.default_queue_policy.max_queue_size: contradicts 'max_enqueued_batches': both bound the same queue",
        ),
        (
            'platform_version: "1" input { name: "a"\n data_type: 1 dims: 1 }',
            "2: input[0].data_type: a number means another type in Adlik's form than in Triton's",
        ),
        ("dynamic_batching { max_enqueued_batches: -1 }", "1: dynamic_batching.max_enqueued_batches: takes 0 or more, not -1"),
        (
            "input { data_type: DT_FLOAT32 }",
            "1: input[0].data_type: unknown value DT_FLOAT32; did you mean 'DT_FLOAT'? allowed: DT_FLOAT",
        ),
        ("input { data_type: 1011 }", "1: input[0].data_type: no value has the number 1011; allowed: TYPE_BOOL"),
        ("platform_versio: 1", "1: platform_versio: unknown field; did you mean 'platform_version'?"),
    ],
)
def test_contradictions_and_typos_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value).startswith(f"resnet/config.pbtxt:{expected}")
