from collections.abc import Mapping

import pytest

from stoker.backends.openvino.parameters import PARAMETER_KEYS, ModelParameters, parameter_violations, read_parameters


def violations(parameters: Mapping[str, str], max_batch_size: int | None = 16) -> list[str]:
    return [str(violation) for violation in parameter_violations(parameters, max_batch_size)]


def test_defaults_are_single_precision_one_batch_at_a_time_and_automatic_sizes() -> None:
    read = read_parameters({})
    assert read == ModelParameters()
    assert read.precision == "f32"
    assert read.buckets_for(8, has_variable_dims=False) == (1, 2, 4, 8)
    assert read.buckets_for(8, has_variable_dims=True) == ()


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"precision": "BF16"}, ModelParameters(precision="bf16")),
        ({"precision": "fp32"}, ModelParameters()),
        ({"HINT_BF16": "YES"}, ModelParameters(precision="bf16")),
        ({"ENFORCE_BF16": "NO"}, ModelParameters()),
        ({"batch_buckets": "1, 4,16"}, ModelParameters(buckets=(1, 4, 16))),
        ({"batch_buckets": "dynamic"}, ModelParameters(buckets=())),
        ({"SKIP_OV_DYNAMIC_BATCHSIZE": "YES"}, ModelParameters(is_one_size=True)),
        ({"pipeline_depth": "4"}, ModelParameters(pipeline_depth=4)),
        ({"NUM_STREAMS": "2"}, ModelParameters(pipeline_depth=2)),
        ({"NUM_STREAMS": "AUTO"}, ModelParameters()),
        ({"INFERENCE_NUM_THREADS": "3"}, ModelParameters(threads=3)),
        ({"CPU_THREADS_NUM": "0"}, ModelParameters()),
        ({"compare_with_onnxruntime": "true"}, ModelParameters(is_compared=True)),
    ],
)
def test_every_parameter_is_read_by_both_its_names(parameters: dict[str, str], expected: ModelParameters) -> None:
    assert violations(parameters) == []
    assert read_parameters(parameters) == expected
    assert parameters.keys() <= PARAMETER_KEYS


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"precision": "f16"}, "takes f32 or bf16, not 'f16'"),
        ({"precision": "f32", "HINT_BF16": "YES"}, "f32 contradicts HINT_BF16"),
        ({"batch_buckets": "4,1,16"}, "ascending batch sizes such as 1,4,16, not '4,1,16'"),
        ({"batch_buckets": "0,16"}, "ascending batch sizes"),
        ({"batch_buckets": ",".join(map(str, range(1, 18)))}, "at most 16 ascending"),
        ({"batch_buckets": "1,8"}, "must end with max_batch_size, 16, not 8"),
        ({"batch_buckets": "16", "SKIP_DYNAMIC_BATCHSIZE": "YES"}, "contradicts SKIP_DYNAMIC_BATCHSIZE"),
        ({"pipeline_depth": "17"}, "takes a whole number from 1 to 16, not '17'"),
        ({"NUM_STREAMS": "many"}, "takes a whole number from 1 to 16, not 'many'"),
        ({"INFERENCE_NUM_THREADS": "-1"}, "takes a whole number from 0 to 1024, not '-1'"),
        ({"HINT_BF16": "maybe"}, "takes YES or NO, not 'maybe'"),
        ({"compare_with_onnxruntime": "maybe"}, "takes true or false, not 'maybe'"),
        ({"CPU_EXTENSION_PATH": "/tmp/libx.so"}, "does not bring native code into the server"),
    ],
)
def test_invalid_value_is_named_with_the_allowed_ones(parameters: dict[str, str], text: str) -> None:
    found = violations(parameters)
    assert len(found) == 1, found
    assert text in found[0]
    assert any(f'parameters["{key}"]' in found[0] for key in parameters)


def test_sizes_without_a_batch_dimension_are_refused() -> None:
    buckets = {"batch_buckets": "1,4"}
    assert violations(buckets, 0) == ['parameters["batch_buckets"]: is for models with a batch dimension; max_batch_size is 0']
    assert violations(buckets, None) == []


def test_all_errors_are_reported_at_once() -> None:
    assert len(violations({"precision": "f8", "pipeline_depth": "0", "batch_buckets": "all"})) == 3
