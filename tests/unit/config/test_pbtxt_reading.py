"""config.pbtxt is parsed as by protobuf's own text parser, in any spelling; it refuses the same texts."""

import random
import re

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import ConfigError, Problem
from stoker.server.core.model_config import AllVersions, LatestVersions, SpecificVersions
from stoker.server.pb import model_config_pb2 as pb


def read(text: str, name: str = "m") -> ParsedConfig:
    return parse_pbtxt(text, source=f"{name}/config.pbtxt", model_name=name)


def reference(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig(name="m") if "\nname" not in f"\n{text}" else pb.ModelConfig())


IMAGE_MODEL = """
platform: "onnxruntime_onnx"
max_batch_size : 1
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
  }
]
output [
  {
    name: "fc6_1"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    reshape { shape: [ 1000, 1, 1 ] }
    label_filename: "labels.txt"
  }
]
"""
BUSY_MODEL = """
backend: "onnxruntime", max_batch_size: 0x10;
input < name: 'a' data_type: 11 dims: -1 dims: 4 optional: True >
input: [ { name: "b\\x41\\103\\u00e9\\n" data_type: TYPE_STRING dims: [ 1 ] }, < name: "c" data_type: TYPE_BF16 dims: [ 010 ] > ]
output: { name: "o" "ut" # joined
  "put" data_type: TYPE_INT64 dims: [ 2, 2 ] }
dynamic_batching: {
  preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100
  priority_levels: 2 default_priority_level: 1
  default_queue_policy { timeout_action: REJECT allow_timeout_override: true }
  priority_queue_policy: [ { key: 2
    value: { timeout_action: DELAY default_timeout_microseconds: 18446744073709551615 max_queue_size: 10 } } ]
}
instance_group [ { count: 2 kind: KIND_CPU }, { name: "x" } ]
parameters: { key: "intra_op_thread_count", value: { string_value: "2" } }
parameters { value < string_value: "x" > key: "other" } parameters { key: "empty" }
metric_tags [ { key: "team" value: "vision" } ]
optimization { graph { level: -1 } input_pinned_memory { enable: f } }
model_warmup { name: "w" batch_size: 1 inputs { key: "a" value { data_type: TYPE_FP32 dims: [ 1, 4 ] random_data: t } } }
model_metrics { metric_control [ { metric_identifier { family: "f" } histogram_options { buckets: [ .5, 1e2, 3f, 4. ] } } ] }
version_policy: { specific: { versions: [ 3, 1 ] } }
"""


@pytest.mark.parametrize("text", [IMAGE_MODEL, BUSY_MODEL], ids=["image model", "every spelling"])
def test_real_world_configurations_equal_protobufs_result(text: str) -> None:
    assert read(text).message == reference(text)


def test_fields_have_their_lines() -> None:
    lines = read(BUSY_MODEL).lines
    assert lines["max_batch_size"] == 2
    assert lines["input[2].dims[0]"] == 4
    assert lines["output[0].dims"] == 6
    assert lines["dynamic_batching.priority_queue_policy[2].max_queue_size"] == 12
    assert lines['parameters["other"].string_value'] == 16


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", LatestVersions(1)),
        ("version_policy { latest { num_versions: 3 } }", LatestVersions(3)),
        ("version_policy: { all { } }", AllVersions()),
        ("version_policy { specific { versions: [ 3, 1, 3 ] } }", SpecificVersions((1, 3))),
    ],
)
def test_version_policies_are_read(text: str, policy: object) -> None:
    assert read(text).version_policy == policy


def test_model_without_config_leaves_every_field_unset() -> None:
    parsed = empty_config("m")
    assert (parsed.name, parsed.backend, parsed.platform, parsed.version_policy) == ("m", "", "", LatestVersions(1))
    assert not parsed.is_written("max_batch_size")


def test_byte_order_mark_is_skipped() -> None:
    assert read("\ufeffmax_batch_size: 3").message.max_batch_size == 3


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
tensors = st.builds(
    lambda name, kind, dims: {"name": name, "data_type": kind, "dims": dims},
    names,
    st.sampled_from(range(1, 15)),
    st.lists(st.sampled_from([-1, 1, 3, 224]), min_size=1, max_size=3),
)


@st.composite
def messages(draw: st.DrawFn) -> pb.ModelConfig:
    message = pb.ModelConfig(
        name="m",
        max_batch_size=draw(st.integers(0, 65536)),
        input=[pb.ModelInput(**fields) for fields in draw(st.lists(tensors, max_size=3, unique_by=lambda tensor: tensor["name"]))],
        output=[pb.ModelOutput(**fields) for fields in draw(st.lists(tensors, max_size=3, unique_by=lambda tensor: tensor["name"]))],
    )
    for key, value in draw(st.dictionaries(names, st.text(st.characters(codec="utf-8"), max_size=8), max_size=3)).items():
        message.parameters[key].string_value = value
    if draw(st.booleans()):
        message.dynamic_batching.max_queue_delay_microseconds = draw(st.integers(0, 2**64 - 1))
        message.dynamic_batching.preserve_ordering = draw(st.booleans())
    return message


@given(messages(), st.booleans(), st.booleans(), st.booleans())
def test_text_printed_by_protobuf_is_parsed_to_the_same_message(message: pb.ModelConfig, one_line: bool, short: bool, pointy: bool) -> None:
    text = text_format.MessageToString(
        message, as_one_line=one_line, use_short_repeated_primitives=short, pointy_brackets=pointy, as_utf8=pointy
    )
    assert read(text).message == message


@given(st.text(st.sampled_from("{}<>[]:;,\"'#\\ \n-.09aeinput")) | st.text(max_size=40))
def test_arbitrary_text_is_parsed_or_refused_with_a_line_and_a_field(text: str) -> None:
    problems: tuple[Problem, ...] = ()
    try:
        read(text)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.line and problem.field for problem in problems)


# Mutants change how something is said, never to another valid thing: names, punctuation and types of values, not values themselves.
MUTATED = """\
name: "m"
backend: "onnxruntime"
max_batch_size: 32
input [ { name: "image" data_type: TYPE_FP32 dims: [ 8, 8 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching {
  preferred_batch_size: [ 16, 32 ]
  max_queue_delay_microseconds: 500
  priority_levels: 2
  default_priority_level: 1
  default_queue_policy { timeout_action: REJECT max_queue_size: 64 }
}
version_policy { latest { num_versions: 2 } }
parameters { key: "execution" value { string_value: "inline" } }
"""
WORD = re.compile(r"(?<![\"\w.])[A-Za-z_]\w*(?![\"\w.])")


def typo(text: str, rng: random.Random) -> str:
    match = rng.choice(list(WORD.finditer(text)))
    word, at = match.group(), rng.randrange(len(match.group()))
    letter = rng.choice("abcxyz_ABCXYZ0123456789")
    changed = rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + letter + word[at:],
            word[:at] + letter + word[at + 1 :],
            word[:at] + word[at : at + 2][::-1] + word[at + 2 :],
        ]
    )
    return text[: match.start()] + changed + text[match.end() :]


def lost_mark(text: str, rng: random.Random) -> str:
    at = rng.choice([match.start() for match in re.finditer(r'[{}\[\]:",]', text)])
    return text[:at] + text[at + 1 :]


def doubled_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    # Another instance group is another valid configuration.
    at = rng.choice([index for index, line in enumerate(lines) if not line.startswith("instance_group")])
    return "".join(lines[: at + 1] + lines[at:])


def other_type(text: str, rng: random.Random) -> str:
    match = rng.choice(list(re.finditer(r'"\w+"|\b\d+\b', text)))
    value = match.group()
    changed = value.strip('"') if value.startswith('"') else f'"{value}"'
    return text[: match.start()] + changed + text[match.end() :]


def out_of_range(text: str, rng: random.Random) -> str:
    match = rng.choice(list(re.finditer(r"\b\d+\b", text)))
    return text[: match.start()] + rng.choice(["-7", "99999999999999999999999", "1.5"]) + text[match.end() :]


def test_two_hundred_mutants_are_refused_with_line_and_field_or_mean_the_same() -> None:
    original = read(MUTATED)
    rng = random.Random(20240229)
    refused = 0
    unplaced: list[Problem] = []
    for number in range(200):
        mutate = (typo, typo, lost_mark, doubled_line, other_type, out_of_range)[number % 6]
        text = mutate(MUTATED, rng)
        try:
            mutant = read(text)
        except ConfigError as error:
            refused += 1
            unplaced += [problem for problem in error.problems if not problem.line or not problem.field]
        else:
            assert (mutant.message, mutant.version_policy) == (original.message, original.version_policy), text
    assert refused > 150
    assert unplaced == []
