"""The exact texts of errors: file, line, field, the error, the allowed values."""

import pytest

from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError

VALID = """\
name: "digits"
backend: "onnxruntime"
max_batch_size: 8
input [
  {
    name: "image"
    data_type: TYPE_FP32
    dims: [ 8, 8 ]
  }
]
output {
  name: "scores"
  data_type: TYPE_FP32
  dims: 10
  reshape { shape: [ 10 ] }
}
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  default_queue_policy {
    max_queue_size: 16
  }
}
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
version_policy { latest { num_versions: 2 } }
"""


def error_of(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_pbtxt(text, source="digits/config.pbtxt", model_name="digits")
    return caught.value


def test_base_text_of_the_cases_is_valid() -> None:
    assert parse_pbtxt(VALID, source="digits/config.pbtxt", model_name="digits").name == "digits"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("max_batch_size", "max_batchsize", "3: max_batchsize: unknown field; did you mean 'max_batch_size'? allowed: max_batch_size, "),
        (
            "reshape",
            "reshap",
            "15: output[0].reshap: unknown field; did you mean 'reshape'? "
            "allowed: name, data_type, dims, reshape, label_filename, is_shape_tensor, is_non_linear_format_io",
        ),
        ("shape: [", "shapes: [", "15: output[0].reshape.shapes: unknown field; did you mean 'shape'? allowed: shape"),
        (
            "TYPE_FP32\n    dims",
            "TYPE_FLOAT32\n    dims",
            "7: input[0].data_type: unknown value TYPE_FLOAT32; did you mean 'TYPE_FP32'? allowed: TYPE_FP32, ",
        ),
        (
            "kind: KIND_CPU",
            "kind: CPU",
            "17: instance_group[0].kind: unknown value CPU; did you mean 'KIND_CPU'? allowed: KIND_AUTO, KIND_GPU, KIND_CPU, KIND_MODEL",
        ),
        ("count: 2", 'count: "2"', '17: instance_group[0].count: takes an integer from -2147483648 to 2147483647, not "2"'),
        (
            "max_queue_size",
            "max_queue_len",
            "21: dynamic_batching.default_queue_policy.max_queue_len: unknown field; did you mean 'max_queue_size'? "
            "allowed: timeout_action, default_timeout_microseconds, allow_timeout_override, max_queue_size",
        ),
        (
            "string_value",
            "value",
            "24: parameters[\"intra_op_thread_count\"].value: unknown field; did you mean 'string_value'? allowed: string_value",
        ),
        ("parameters { key", "parameters { name", "24: parameters.name: unknown field; allowed: key, value"),
        (
            "latest {",
            "last {",
            "25: version_policy.last: unknown field; did you mean 'latest'? allowed: latest, all, specific, none",
        ),
        ('"onnxruntime"', "onnxruntime", "2: backend: takes a string in quotes, not onnxruntime"),
        ("max_batch_size: 8", "max_batch_size: 8\nmax_batch_size: 9", "4: max_batch_size: written twice (first on line 3)"),
        ("max_batch_size: 8", "max_batch_size: 70000", "3: max_batch_size: takes 0 to 65536, not 70000"),
        ("[ 4, 8 ]", "[ 4,\n 9 ]", "20: dynamic_batching.preferred_batch_size[1]: takes 1 to max_batch_size (8), not 9"),
        ("dims: [ 8, 8 ]", "dims: [ 8,\n\n 0 ]", "10: input[0].dims[1]: takes -1 (varies) or a size of at least 1, not 0"),
        ("shape: [ 10 ]", "shape: [ 9 ]", "15: output[0].reshape.shape: [9] does not hold the elements of dims [10]"),
        (
            'name: "digits"',
            'name: "digit"',
            "1: name: 'digit' differs from the model's folder 'digits'; leave it out or write the folder's name",
        ),
        (
            "dynamic_batching {",
            "sequence_batching {}\ndynamic_batching {",
            "19: dynamic_batching: contradicts 'sequence_batching' (first on line 18): at most one of dynamic_batching, sequence_batching, "
            "ensemble_scheduling may be written",
        ),
        ('"image"', '"image', "6: name: a string that is not closed on its line"),
        ('"image"', '"im\\qage"', "6: input.name: '\\q' is not an escape sequence"),
        ("dims: 10", "dims 10", "14: output.dims: expected ':' or '{' after 'dims', not '10'"),
        ("[ 8, 8 ]", "[ 8 8 ]", "8: input.dims: expected ',' or ']' in the list, not '8'"),
        (
            "latest { num_versions: 2 } }",
            "latest { num_versions: 2 }",
            "26: version_policy: expected a field name or '}', not the end of the file",
        ),
        ("name: \"digits\"", "} name: \"digits\"", "1: (top level): expected a field name, not '}'"),
    ],
)  # fmt: skip
def test_error_names_line_field_and_what_is_allowed(old: str, new: str, expected: str) -> None:
    assert old in VALID
    text = str(error_of(VALID.replace(old, new, 1)))
    assert text.startswith(f"digits/config.pbtxt:{expected}")
    assert "\n" not in text


def test_all_problems_are_reported_at_once_in_the_order_of_their_lines() -> None:
    error = error_of('dynamic_batching { delay: 1 }\nmax_batch: 8\ninput { namex: "x" }\n')
    assert [(problem.line, problem.field) for problem in error.problems] == [
        (1, "dynamic_batching.delay"),
        (2, "max_batch"),
        (3, "input[0].namex"),
    ]
    assert str(error) == "; ".join(str(problem) for problem in error.problems)
    assert "\n" not in str(error)


def test_long_list_of_allowed_names_is_cut_to_the_nearest() -> None:
    (problem,) = error_of("max_batchsize: 8").problems
    hint, _, names = problem.message.partition(" allowed: ")
    assert hint == "unknown field; did you mean 'max_batch_size'?"
    *nearest, rest = names.split(", ")
    assert nearest[0] == "max_batch_size"
    assert len(nearest) == 8
    assert rest == "... (27 in all)"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TYPE_FLOAT", "TYPE_FP32"),
        ("TYPE_DOUBLE", "TYPE_FP64"),
        ("TYPE_HALF", "TYPE_FP16"),
        ("TYPE_BFLOAT16", "TYPE_BF16"),
        ("TYPE_BYTES", "TYPE_STRING"),
        ("FLOAT", "TYPE_FP32"),
        ("STRING", "TYPE_STRING"),
        ("INT8", "TYPE_INT8"),
        ("type_fp32", "TYPE_FP32"),
        ("TYPE_UNIT8", "TYPE_UINT8"),
        ("DT_FP32", "DT_FLOAT"),
        ("DT_BF16", "DT_BFLOAT16"),
    ],
)
def test_element_type_in_another_spelling_is_understood(written: str, meant: str) -> None:
    (problem,) = error_of(f"input {{ data_type: {written} }}").problems
    assert f"; did you mean '{meant}'?" in problem.message


@pytest.mark.parametrize("written", ["TYPE_COMPLEX", "xyz"])
def test_dissimilar_names_get_no_suggestion(written: str) -> None:
    (problem,) = error_of(f"input {{ data_type: {written} }}").problems
    assert "did you mean" not in problem.message
    assert "; allowed: TYPE_" in problem.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_enqueued_batches: 4", "max_enqueued_batches: unknown field here; it belongs inside 'dynamic_batching'"),
        ("dynamic_batching { max_batch_size: 4 }", "dynamic_batching.max_batch_size: unknown field here; it belongs at the top level"),
        (
            "dynamic_batching { max_queue_size: 4 }",
            "dynamic_batching.max_queue_size: unknown field here; it belongs inside 'dynamic_batching.default_queue_policy' "
            "or inside 'dynamic_batching.priority_queue_policy'",
        ),
        ("dims: 3", "dims: unknown field here; it belongs inside 'input' or inside 'output'"),
    ],
)
def test_error_of_a_field_in_the_wrong_block_names_the_right_block(text: str, expected: str) -> None:
    assert str(error_of(text)) == f"digits/config.pbtxt:1: {expected}"


def test_parsing_stops_after_a_bounded_number_of_problems() -> None:
    assert len(error_of("\n".join(f"x{number}: 1" for number in range(1000))).problems) == 50


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("#" + "x" * (1 << 20), "(file)", "longer than 1048576 bytes"),
        ("a {" * 10_000, ".".join(["a"] * 33), "nested deeper than 32"),
        ("max_batch_size: " + "9" * 500_000, "max_batch_size", "takes an integer"),
        ("input { dims: [" + "9999999, " * 5 + "9999999] name: \"x\" }", "input[0].dims", "more than 2147483647 elements"),
        ("instance_group { count: 65 }", "instance_group[0].count", "takes 1 to 64"),
        ("instance_group { count: 40 } instance_group { count: 40 }", "instance_group", "80 instances in all; at most 64"),
        ("input { name: \"x\" dims: [" + "1," * 40 + "1] }", "input[0].dims", "41 dimensions; at most 32"),
    ],
)  # fmt: skip
def test_hostile_sizes_are_refused(text: str, field: str, words: str) -> None:
    (problem,) = error_of(text).problems
    assert problem.line == 1
    assert problem.field == field
    assert words in problem.message


def test_lines_are_counted_through_comments_and_joined_strings() -> None:
    text = 'name: "dig" # a comment\n  # another\n  "its"\r\n\n\nmax_batch_size: -1'
    (problem,) = error_of(text).problems
    assert (problem.line, problem.field) == (6, "max_batch_size")
