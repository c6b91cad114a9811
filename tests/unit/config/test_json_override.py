"""The `config` parameter of a load: ModelConfig as JSON."""

import json

import pytest
from google.protobuf import json_format

from stoker.server.config.pbtxt import parse_config_json, parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.pb import model_config_pb2 as pb

FULL = pb.ModelConfig(name="m", backend="onnxruntime", max_batch_size=8)
FULL.input.add(name="x", data_type=pb.TYPE_FP32, dims=[3, -1])
FULL.output.add(name="y", data_type=pb.TYPE_BF16, dims=[1]).reshape.SetInParent()
FULL.dynamic_batching.max_queue_delay_microseconds = 2**63
FULL.dynamic_batching.priority_levels = 2
FULL.dynamic_batching.default_priority_level = 1
FULL.dynamic_batching.priority_queue_policy[2].timeout_action = pb.ModelQueuePolicy.DELAY
FULL.parameters["k"].string_value = "é"
FULL.metric_tags["team"] = "vision"
FULL.instance_group.add(count=2, kind=pb.ModelInstanceGroup.KIND_CPU)
FULL.model_metrics.metric_control.add().histogram_options.buckets.extend([0.5, 1e10])


def read(text: str) -> pb.ModelConfig:
    return parse_config_json(text, model_name="m").message


@pytest.mark.parametrize("keep_names", [True, False])
@pytest.mark.parametrize("numeric_enums", [True, False])
def test_json_printed_by_protobuf_is_read(keep_names: bool, numeric_enums: bool) -> None:
    text = json_format.MessageToJson(FULL, preserving_proto_field_name=keep_names, use_integers_for_enums=numeric_enums, indent=None)
    assert read(text) == FULL


def test_configuration_with_every_default_printed_is_read() -> None:
    minimal = pb.ModelConfig(name="m", max_batch_size=1)
    text = json_format.MessageToJson(minimal, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    assert read(text) == minimal


def test_numbers_may_be_strings_and_null_means_unset() -> None:
    message = read('{"max_batch_size": "4", "backend": null, "dynamic_batching": {"max_queue_delay_microseconds": 7.0}}')
    assert (message.max_batch_size, message.backend, message.dynamic_batching.max_queue_delay_microseconds) == (4, "", 7)


def test_name_defaults_to_the_loaded_model() -> None:
    assert read("{}").name == "m"


def test_json_and_text_mean_the_same() -> None:
    text = parse_pbtxt('max_batch_size: 2 platform: "onnx" input { name: "x" data_type: DT_FLOAT dims: 1 }', source="s", model_name="m")
    adlik = parse_config_json(
        '{"maxBatchSize": 2, "platform": "onnx", "input": [{"name": "x", "dataType": "DT_FLOAT", "dims": [1]}]}', model_name="m"
    )
    assert (adlik.message, adlik.is_adlik, adlik.version_policy) == (text.message, text.is_adlik, text.version_policy)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("{", "(top level)", "not valid JSON: Expecting property name enclosed in double quotes (line 1, column 2)"),
        ("[]", "(top level)", "takes a JSON object"),
        ('{"max_batch_sice": 1}', "max_batch_sice", "unknown field; did you mean 'max_batch_size'? allowed: max_batch_size, "),
        ('{"max_batch_size": 1.5}', "max_batch_size", "takes an integer from -2147483648 to 2147483647, not 1.5"),
        ('{"max_batch_size": true}', "max_batch_size", "takes an integer"),
        ('{"max_batch_size": NaN}', "max_batch_size", "takes an integer"),
        ('{"max_batch_size": ' + "9" * 5000 + "}", "max_batch_size", "takes an integer"),
        ('{"max_batch_size": 1, "maxBatchSize": 2}', "max_batch_size", "written twice"),
        ('{"name": 3}', "name", "takes a string"),
        ('{"name": "\\ud800"}', "name", "takes valid Unicode text"),
        ('{"input": {"name": "x"}}', "input", "takes a list"),
        ('{"input": [3]}', "input[0]", "takes a block"),
        ('{"input": [null]}', "input[0]", "takes a block"),
        ('{"input": [{"dims": [[1]]}]}', "input[0].dims[0]", "takes an integer"),
        ('{"input": [{"data_type": "FP32"}]}', "input[0].data_type", "did you mean 'TYPE_FP32'?"),
        ('{"parameters": [{"key": "a"}]}', "parameters", "takes an object"),
        ('{"parameters": {"a": "b"}}', 'parameters["a"]', "takes a block"),
        ('{"response_cache": {"enable": 1}}', "response_cache.enable", "takes true or false, not 1"),
        ('{"instance_group": [{"passive": true}]}', "instance_group", "all groups are passive"),
        ('{"dynamic_batching": {}, "sequence_batching": {}}', "sequence_batching", "contradicts 'dynamic_batching': at most one of"),
        ('{"name": "other"}', "name", "differs from the model's folder"),
        ('{"a":' * 33 + "1" + "}" * 33, "(top level)", "nested deeper than 32"),
        ("[" * 500_000, "(top level)", "nested deeper than 32"),
        ('"' + "x" * (1 << 20) + '"', "(top level)", "longer than 1048576 bytes"),
    ],
)
def test_json_errors_name_the_field(text: str, field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert (problem.field, problem.line) == (field, None)
    assert words in problem.message
    assert str(problem).startswith("m (config of the load request): ")


def test_brackets_within_strings_do_not_count_as_depth() -> None:
    assert read(json.dumps({"parameters": {"k": {"string_value": '[{"\\' * 100}}})).parameters["k"].string_value == '[{"\\' * 100
