"""Ranges, names and contradictions that a configuration has by itself; fields that are refused or without effect."""

import pytest

from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError


def read(text: str) -> tuple[str, ...]:
    return parse_pbtxt(text, source="m/config.pbtxt", model_name="m").warnings


def problem_of(text: str) -> tuple[str, str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (problem,) = caught.value.problems
    assert problem.line == 1
    return problem.field, problem.message


TENSOR = 'name: "x" data_type: TYPE_FP32 dims: 1'


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("max_batch_size: -1", "max_batch_size", "takes 0 to 65536"),
        ("version_policy { latest { } }", "version_policy.latest.num_versions", "takes 1 or more"),
        ("version_policy { specific { } }", "version_policy.specific.versions", "names no version"),
        ("version_policy { specific { versions: [1, 0] } }", "version_policy.specific.versions[1]", "takes 1 or more, not 0"),
        (f"input {{ {TENSOR} }} input {{ {TENSOR} }}", "input[1].name", "'x' is also the name of input[0]"),
        (f"output {{ {TENSOR} }} output {{ {TENSOR} }}", "output[1].name", "'x' is also the name of output[0]"),
        ("input { dims: 1 }", "input[0].name", "must be written"),
        ('input { name: "x" dims: -2 }', "input[0].dims[0]", "takes -1 (varies) or a size of at least 1, not -2"),
        ('input { name: "x" reshape { shape: 1 } }', "input[0].reshape", "needs 'dims' beside it"),
        ('input { name: "x" dims: [2, -1] reshape { shape: [-1, 2] } }', "input[0].reshape.shape", "does not hold the elements"),
        ('input { name: "x" dims: [2] reshape { } }', "input[0].reshape.shape", "does not hold the elements"),
        ('input { name: "x" dims: [2, 2] format: FORMAT_NHWC }', "input[0].format", "FORMAT_NHWC needs 3 dims, not 2"),
        ("instance_group { count: -1 }", "instance_group[0].count", "takes 1 to 64"),
        ("instance_group { kind: KIND_CPU gpus: 0 }", "instance_group[0].gpus", "contradicts kind KIND_CPU"),
        ('instance_group { name: "g" } instance_group { name: "g" }', "instance_group[1].name", "also the name of instance_group[0]"),
        ("dynamic_batching { preferred_batch_size: 0 }", "dynamic_batching.preferred_batch_size[0]", "takes 1 to max_batch_size, not 0"),
        ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level", "takes 1 to priority_levels (2), not 0"),
        ("dynamic_batching { default_priority_level: 1 }", "dynamic_batching.default_priority_level", "without 'priority_levels'"),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
            "dynamic_batching.priority_queue_policy[3]",
            "no such level; priority_levels is 2",
        ),
        (
            "dynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
            "dynamic_batching.preserve_ordering",
            "contradicts 2 priority levels",
        ),
        (
            "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY } }",
            "dynamic_batching.default_queue_policy.timeout_action",
            "contradicts preserve_ordering",
        ),
        (
            "dynamic_batching { priority_levels: 18446744073709551615 default_priority_level: 1 }",
            "dynamic_batching.priority_levels",
            "to 1000",
        ),
        ('parameters { key: "execution" value { string_value: "fork" } }', 'parameters["execution"]', "allowed: auto, thread, inline"),
        ('parameters { key: "nice" value { string_value: "-5" } }', 'parameters["nice"]', "takes a whole number from 0 to 19, not '-5'"),
        ('parameters { key: "nice" value { string_value: "20" } }', 'parameters["nice"]', "takes a whole number from 0 to 19, not '20'"),
        (
            'parameters { key: "nice" value { string_value: "5" } } parameters { key: "execution" value { string_value: "inline" } }',
            'parameters["nice"]',
            "contradicts execution 'inline'",
        ),
        ('metric_tags { key: "a-b" value: "x" }', 'metric_tags["a-b"]', "not usable as a metric label"),
        ('metric_tags { key: "model" value: "x" }', 'metric_tags["model"]', "not usable as a metric label"),
        (
            'model_warmup { inputs { key: "x" value { dims: 1 zero_data: true } } }',
            'model_warmup[0].inputs["x"].data_type',
            "must be written",
        ),
        (
            'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: 1 } } }',
            'model_warmup[0].inputs["x"]',
            "write zero_data, random_data or input_data_file",
        ),
        (
            'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }',
            'model_warmup[0].inputs["x"].dims[0]',
            "takes a size of at least 1",
        ),
        ("model_warmup { count: 1001 }", "model_warmup[0].count", "takes 0 to 1000"),
    ],
)
def test_wrong_value_is_refused_by_name(text: str, field: str, words: str) -> None:
    found, message = problem_of(text)
    assert found == field
    assert words in message


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/model.onnx", "a/../../b", "a\\b", ".", "a\nb"])
@pytest.mark.parametrize(
    ("template", "field"),
    [
        ("default_model_filename: {}", "default_model_filename"),
        ('output {{ name: "o" dims: 1 label_filename: {} }}', "output[0].label_filename"),
        (
            'model_warmup {{ inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 1 input_data_file: {} }} }} }}',
            'model_warmup[0].inputs["x"].input_data_file',
        ),
    ],
)
def test_file_names_outside_the_folder_are_refused(template: str, field: str, path: str) -> None:
    quoted = '"' + path.replace("\\", "\\\\").replace("\n", "\\n") + '"'
    found, message = problem_of(template.format(quoted))
    assert found == field
    assert "is not a path inside" in message


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('model_repository_agents { agents { name: "decrypt" } }', "model_repository_agents.agents[0]"),
        ('model_operations { op_library_filename: "a.so" }', "model_operations.op_library_filename"),
        (f"input {{ {TENSOR} is_shape_tensor: true }}", "input[0].is_shape_tensor"),
        (f"input {{ {TENSOR} is_non_linear_format_io: true }}", "input[0].is_non_linear_format_io"),
        (f"output {{ {TENSOR} is_shape_tensor: true }}", "output[0].is_shape_tensor"),
        ("instance_group { secondary_devices { } }", "instance_group[0].secondary_devices"),
    ],
)
def test_unsupported_fields_that_change_results_are_refused(text: str, field: str) -> None:
    assert problem_of(text) == (field, "not supported by this server")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sequence_batching { }", "contradicts sequence_batching"),
        ("model_transaction_policy { decoupled: true }", "contradicts model_transaction_policy.decoupled"),
    ],
)
def test_cache_contradicts_results_that_depend_on_more_than_the_inputs(text: str, words: str) -> None:
    field, message = problem_of("response_cache { enable: true } " + text)
    assert field == "response_cache.enable"
    assert words in message


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        ("optimization { input_pinned_memory { enable: true } }", "optimization.input_pinned_memory"),
        ("optimization { priority: PRIORITY_MAX }", "optimization.priority"),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        ('runtime: "x"', "runtime"),
        ('cc_model_filenames { key: "7.5" value: "x" }', "cc_model_filenames"),
        ("model_metrics { metric_control { } }", "model_metrics.metric_control[0]"),
        ('instance_group { host_policy: "x" }', "instance_group[0].host_policy"),
        ('instance_group { profile: "x" }', "instance_group[0].profile"),
    ],
)
def test_advisory_fields_warn(text: str, field: str) -> None:
    (warning,) = read(text)
    assert warning.startswith(f"m/config.pbtxt:1: {field}: has no effect here: ")


@pytest.mark.parametrize(
    "text",
    [
        "response_cache { enable: false } model_transaction_policy { decoupled: false }",
        "response_cache { enable: true }",
        "instance_group { rate_limiter { } } model_repository_agents { }",
        'instance_group { rate_limiter { priority: 2 resources { name: "R" count: 1 global: true } } }',
        "input { name: \"x\" dims: [2, -1, 3] reshape { shape: [1, 2, -1, 3] } }",
        "input { name: \"x\" dims: [1] reshape { } }",
        "dynamic_batching { preserve_ordering: true priority_levels: 1 default_priority_level: 1 }",
        "output { name: \"o\" dims: 1 label_filename: \"labels/en.txt\" }",
        "optimization { graph { level: 2 } }",
    ],
)  # fmt: skip
def test_valid_configurations_pass_without_warnings(text: str) -> None:
    assert read(text) == ()


FIRST_RESPONSES = 'metric_identifier { family: "nv_inference_first_response_histogram_ms" }'


@pytest.mark.parametrize("buckets", ["", "[ 2, 1 ]", "[ 0 ]", "[ 1, 1 ]"])
def test_buckets_of_a_histogram_must_ascend(buckets: str) -> None:
    options = f"histogram_options {{ {f'buckets: {buckets}' if buckets else ''} }}"
    with pytest.raises(ConfigError, match=r"model_metrics\.metric_control\[0\]\.histogram_options\.buckets"):
        read(f"model_metrics {{ metric_control {{ {FIRST_RESPONSES} {options} }} }}")


def test_buckets_of_the_first_response_are_accepted_without_a_warning() -> None:
    assert read(f"model_metrics {{ metric_control {{ {FIRST_RESPONSES} histogram_options {{ buckets: [ 0.5, 10 ] }} }} }}") == ()


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("MD5:../x", "0" * 32, "is not a path inside the model folder"),
        ("CRC:x", "0" * 32, "expected MD5:FILE or SHA256:FILE"),
        ("MD5:", "0" * 32, "expected MD5:FILE"),
        ("MD5:x", "0" * 31, "is no MD5 checksum, which has 32"),
        ("SHA256:x", "0" * 32, "is no SHA256 checksum, which has 64"),
    ],
)
def test_malformed_checksums_are_named(key: str, value: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        read(f'model_repository_agents {{ agents {{ name: "checksum" parameters {{ key: "{key}" value: "{value}" }} }} }}')
