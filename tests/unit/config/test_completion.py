"""Completing a configuration from its model file: Triton's rules, one by one."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stoker.backends.api.candidate import Candidate, Violation, parameter_path
from stoker.backends.api.model import FileTensor, ModelFacts, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import Completion, FindingKind, complete
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.core.model_config import BatchingDefaults, Execution, InstanceGroup
from tests.fakes.named_backends import NamedBackend, onnx_like

FP32, INT64 = DataType.FP32, DataType.INT64
NAMED_TWICE = ModelFacts((FileTensor("x", FP32, (-1, 8), aliases=("x:0",)),), (FileTensor("y", FP32, (-1, 2), aliases=("y:0", "z")),))
BATCHABLE = ModelFacts((FileTensor("x", FP32, (-1, 8, -1)), FileTensor("n", INT64, (-1,))), (FileTensor("y", FP32, (-1, 10)),))
FIXED = ModelFacts((FileTensor("x", FP32, (1, 8)),), (FileTensor("y", FP32, (-1, 10)), FileTensor("scale", FP32, ())))
SILENT = ModelFacts(inputs=None, outputs=None)

X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8, -1 ] }\n'
N = 'input { name: "n" data_type: TYPE_INT64 dims: 1 reshape { } }\n'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: 10 }\n'


def completed(text: str, facts: ModelFacts, backend: NamedBackend | None = None) -> Completion:
    parsed = parse_pbtxt(text, source="m/config.pbtxt", model_name="m")
    return complete(parsed, facts, backend or onnx_like(), "model.onnx")


def problems_of(text: str, facts: ModelFacts, backend: NamedBackend | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        completed(text, facts, backend)
    return [str(problem) for problem in caught.value.problems]


def finding(completion: Completion, field: str) -> tuple[FindingKind, str]:
    (found,) = [found for found in completion.findings if found.field == field]
    return found.kind, found.text


def warnings(completion: Completion) -> list[str]:
    return [found.text for found in completion.findings if found.kind is FindingKind.WARNING]


def test_model_without_config_is_completed_from_its_file() -> None:
    completion = complete(empty_config("m"), BATCHABLE, onnx_like(), "model.onnx")
    config = completion.config
    assert config.signature.max_batch_size == 32
    assert config.signature.inputs == (TensorSpec("x", FP32, (8, -1)), TensorSpec("n", INT64, (1,), reshape=()))
    assert config.signature.outputs == (TensorSpec("y", FP32, (10,)),)
    assert config.dynamic_batching is not None
    assert config.instance_groups == (InstanceGroup(name="m", count=1),)
    assert (config.name, config.backend, config.platform, config.model_filename) == ("m", "onnxruntime", "onnxruntime_onnx", "model.onnx")
    assert finding(completion, "max_batch_size")[0] is FindingKind.INFERRED
    assert finding(completion, "input[0]") == (FindingKind.INFERRED, "'x' TYPE_FP32 [8, -1], from the model file")
    assert finding(completion, "version_policy") == (FindingKind.DEFAULT, "latest 1")


def test_tensor_is_served_by_the_alias_that_the_config_has() -> None:
    def names(text: str) -> list[str]:
        signature = completed(text, NAMED_TWICE).config.signature
        return [spec.name for spec in (*signature.inputs, *signature.outputs)]

    assert names("max_batch_size: 8") == ["x", "y"]
    assert names('max_batch_size: 8 input { name: "x:0" data_type: TYPE_FP32 dims: 8 }') == ["x:0", "y"]
    assert names('max_batch_size: 8 output { name: "z" }') == ["x", "z"]
    assert "the model file has no output 'w'" in problems_of('output { name: "w" }', NAMED_TWICE)[0]


def test_tensor_without_an_open_first_dimension_disables_batching() -> None:
    completion = complete(empty_config("m"), FIXED, onnx_like(), "model.onnx")
    signature = completion.config.signature
    assert signature.max_batch_size == 0
    assert signature.inputs[0].dims == (1, 8)
    assert signature.outputs == (TensorSpec("y", FP32, (-1, 10)), TensorSpec("scale", FP32, (1,), reshape=()))
    assert completion.config.dynamic_batching is None
    assert finding(completion, "max_batch_size")[0] is FindingKind.DEFAULT


def test_completion_is_skipped_if_inputs_and_outputs_are_configured() -> None:
    config = completed("max_batch_size: 8\n" + X + N + Y, BATCHABLE).config
    assert config.signature.max_batch_size == 8
    assert config.dynamic_batching is None


def test_configured_tensors_without_max_batch_size_are_not_batched() -> None:
    text = 'input { name: "x" data_type: TYPE_FP32 dims: [-1, 8] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 10] }'
    facts = ModelFacts((FileTensor("x", FP32, (-1, 8)),), (FileTensor("y", FP32, (-1, 10)),))
    assert completed(text, facts).config.signature.max_batch_size == 0


def test_configured_max_batch_size_is_kept_and_gets_a_scheduler_when_tensors_are_inferred() -> None:
    completion = completed("max_batch_size: 16", BATCHABLE)
    assert completion.config.signature.max_batch_size == 16
    assert completion.config.dynamic_batching is not None
    assert finding(completion, "max_batch_size") == (FindingKind.WRITTEN, "16")


def test_no_scheduler_is_added_for_batches_of_one() -> None:
    assert completed("max_batch_size: 1", BATCHABLE).config.dynamic_batching is None


def test_configured_scheduler_is_kept() -> None:
    batching = completed("dynamic_batching { max_queue_delay_microseconds: 7 }", BATCHABLE).config.dynamic_batching
    assert batching is not None
    assert batching.max_queue_delay_us == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 0", 32),
        ('max_batch_size: 0 input { name: "x" dims: [-1, 8, -1] }', 0),
        ('input { name: "x" dims: [8, -1] }', 32),
    ],
)
def test_zero_max_batch_size_is_kept_if_tensors_are_configured(text: str, expected: int) -> None:
    assert completed(text, BATCHABLE).config.signature.max_batch_size == expected


def test_partial_inputs_are_merged_by_name() -> None:
    completion = completed('max_batch_size: 2\ninput { name: "n" }\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8, 3 ] }', BATCHABLE)
    assert completion.config.signature.inputs == (TensorSpec("n", INT64, (1,), reshape=()), TensorSpec("x", FP32, (8, 3)))
    assert finding(completion, "input[0]")[0] is FindingKind.INFERRED
    assert finding(completion, "input[1]") == (FindingKind.WRITTEN, "'x' TYPE_FP32 [8, 3]")


def test_missing_inputs_follow_the_configured_ones() -> None:
    assert [spec.name for spec in completed('input { name: "n" }', BATCHABLE).config.signature.inputs] == ["n", "x"]


def test_fixed_size_may_be_configured_where_the_file_is_open() -> None:
    config = completed('max_batch_size: 2 input { name: "x" dims: [8, 3] }', BATCHABLE).config
    assert config.signature.inputs[0].dims == (8, 3)


def test_outputs_may_be_omitted() -> None:
    facts = ModelFacts((FileTensor("x", FP32, (8,)),), (FileTensor("y", FP32, (10,)), FileTensor("z", FP32, (1,))))
    text = 'input { name: "x" data_type: TYPE_FP32 dims: 8 }' + Y
    assert [spec.name for spec in completed(text, facts).config.signature.outputs] == ["y"]


def test_optional_inputs_of_the_file_are_optional() -> None:
    facts = ModelFacts((FileTensor("x", FP32, (8,)), FileTensor("o", FP32, (1,), optional=True)), (FileTensor("y", FP32, (10,)),))
    assert completed("", facts).config.signature.inputs[1].optional
    text = 'input { name: "x" data_type: TYPE_FP32 dims: 8 }' + Y
    assert [spec.name for spec in completed(text, facts).config.signature.inputs] == ["x"]
    insists = 'input { name: "o" optional: false }'
    assert not completed(insists, facts).config.signature.inputs[0].optional


def test_batch_dimension_fixed_to_max_batch_size_is_accepted() -> None:
    facts = ModelFacts((FileTensor("x", FP32, (4, 8)),), (FileTensor("y", FP32, (-1, 10)),))
    assert completed("max_batch_size: 4", facts).config.signature.inputs == (TensorSpec("x", FP32, (8,)),)


def test_file_without_facts_needs_a_full_config() -> None:
    assert problems_of("", SILENT) == [
        "m/config.pbtxt:1: input: must be written: the model file does not state it",
        "m/config.pbtxt:1: output: must be written: the model file does not state it",
    ]
    assert completed("max_batch_size: 2\n" + X + Y, SILENT).config.signature.max_batch_size == 2


def test_shape_unknown_to_the_file_is_read_from_the_config() -> None:
    facts = ModelFacts((FileTensor("x", FP32, None),), (FileTensor("y", FP32, None),))
    text = 'input { name: "x" data_type: TYPE_FP32 dims: [3] } output { name: "y" data_type: TYPE_FP32 dims: [5] }'
    assert completed(text, facts).config.signature.outputs[0].dims == (5,)
    assert problems_of("", facts)[0].startswith("m/config.pbtxt:1: input[0].dims: tensor 'x': must be written")


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        (
            '\ninput { name: "x"\n data_type: TYPE_FP16 }',
            BATCHABLE,
            "3: input[0].data_type: tensor 'x': the config says TYPE_FP16, the model file has TYPE_FP32",
        ),
        (
            'max_batch_size: 4\ninput { name: "x"\n dims: [ 9, 2 ] }',
            BATCHABLE,
            "3: input[0].dims: tensor 'x': the config says [9, 2], the model file has [8, -1] beside the batch dimension",
        ),
        (
            'max_batch_size: 4\noutput { name: "y" dims: [ -1, 10 ] }',
            BATCHABLE,
            "2: output[0].dims: tensor 'y': the config says [-1, 10], the model file has [10] beside the batch dimension; "
            "leave the batch dimension out, or write max_batch_size: 0",
        ),
        (
            'max_batch_size: 4\noutput { name: "y" dims: [ -1 ] }',
            BATCHABLE,
            "2: output[0].dims: tensor 'y': the config says [-1], the model file has [10] beside the batch dimension",
        ),
        (
            'max_batch_size: 4\ninput { name: "n" dims: [ 1 ] }',
            BATCHABLE,
            "2: input[0].dims: tensor 'n': the config says [1], the model file has [] beside the batch dimension; "
            "add 'reshape { shape: [ ] }'",
        ),
        (
            'max_batch_size: 4\noutput { name: "y" dims: [ 10 ]\n reshape { shape: [ 5, 2 ] } }',
            BATCHABLE,
            "3: output[0].reshape.shape: tensor 'y': the config says [5, 2], the model file has [10] beside the batch dimension",
        ),
        ('\ninput { name: "X" }', BATCHABLE, "2: input[0].name: the model file has no input 'X'; did you mean 'x'? allowed: x, n"),
        ('\ninput { name: "x" optional: true }', BATCHABLE, "2: input[0].optional: tensor 'x': the model file requires it"),
        ("\nmax_batch_size: 8\n" + X + Y, BATCHABLE, "3: input: the model file also needs input 'n'"),
        (
            "\nmax_batch_size: 8",
            ModelFacts((FileTensor("x", FP32, (1, 8)),), (FileTensor("y", FP32, (-1, 10)),)),
            "2: max_batch_size: 8, but input 'x' of the file has shape [1, 8]; "
            "batching needs an open first dimension (-1), or one fixed to max_batch_size; "
            "write max_batch_size: 0 and the whole shape as dims",
        ),
        (
            'max_batch_size: 2\ninput { name: "x" }\n' + N + Y,
            BATCHABLE,
            "2: input[0].data_type: must be written: a config with both 'input' and 'output' is not completed from the model file",
        ),
        (
            "dynamic_batching {\n preferred_batch_size: 33 }",
            BATCHABLE,
            "2: dynamic_batching.preferred_batch_size[0]: takes 1 to max_batch_size (32), not 33",
        ),
        (
            "instance_group {\n kind: KIND_GPU }",
            BATCHABLE,
            "2: instance_group[0].kind: KIND_GPU is not supported by backend 'onnxruntime'; allowed: KIND_AUTO, KIND_CPU",
        ),
        ("instance_group {\n gpus: 0 }", BATCHABLE, "2: instance_group[0].gpus: not supported by backend 'onnxruntime'"),
    ],
)
def test_conflict_names_the_line_the_tensor_and_both_sides(text: str, facts: ModelFacts, expected: str) -> None:
    assert problems_of(text, facts)[0].startswith(f"m/config.pbtxt:{expected}")


def test_all_conflicts_are_listed() -> None:
    text = 'input { name: "x" data_type: TYPE_INT8 }\ninput { name: "z" }\ninput { name: "n" dims: 3 }\ninstance_group { kind: KIND_MODEL }'
    with pytest.raises(ConfigError) as caught:
        completed(text, BATCHABLE)
    fields = [(problem.line, problem.field) for problem in caught.value.problems]
    assert fields == [(1, "input[0].data_type"), (2, "input[1].name"), (3, "input[2].dims"), (4, "instance_group[0].kind")]


def test_instance_groups_are_named_and_resolved() -> None:
    config = completed('instance_group [ { }, { name: "fast" count: 3 kind: KIND_CPU } ]', BATCHABLE).config
    assert config.instance_groups == (InstanceGroup(name="m_0", count=1), InstanceGroup(name="fast", count=3))


def test_kind_auto_becomes_the_backends_device() -> None:
    backend = NamedBackend("card", "model.exec", instance_kinds=("KIND_MODEL", "KIND_GPU"), devices=(0, 1))
    config = completed("instance_group [ { }, { gpus: [ 0, 1 ] } ]", BATCHABLE, backend).config
    assert [(group.kind, group.gpus) for group in config.instance_groups] == [("KIND_MODEL", ()), ("KIND_GPU", (0, 1))]


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (("KIND_CPU",), "one KIND_CPU instance with every usable core"),
        (("KIND_CPU", "KIND_MODEL"), "one KIND_CPU instance: backend 'card' chooses its device"),
    ],
)
def test_cores_are_mentioned_only_if_the_host_computes(kinds: tuple[str, ...], text: str) -> None:
    findings = completed("", BATCHABLE, NamedBackend("card", "model.exec", instance_kinds=kinds)).findings
    assert [finding.text for finding in findings if finding.field == "instance_group"] == [text]


@pytest.mark.parametrize("text", ["", "instance_group { }", "instance_group { kind: KIND_GPU }"])
def test_group_without_devices_uses_all_of_them(text: str) -> None:
    backend = NamedBackend("card", "model.exec", instance_kinds=("KIND_GPU", "KIND_CPU"), devices=(0, 1))
    [group] = completed(text, BATCHABLE, backend).config.instance_groups
    assert (group.kind, group.gpus) == ("KIND_GPU", (0, 1))


def test_missing_or_repeated_devices_are_refused() -> None:
    backend = NamedBackend("card", "model.exec", instance_kinds=("KIND_GPU",), devices=(0, 1))
    with pytest.raises(ConfigError) as caught:
        completed("instance_group { gpus: [ 0, 2, 0 ] }", BATCHABLE, backend)
    first, second = caught.value.problems
    assert (first.field, first.message) == ("instance_group[0].gpus[1]", "backend 'card' has no device 2; it has 0, 1")
    assert (second.field, "named twice" in second.message) == ("instance_group[0].gpus[2]", True)


def test_parameters_unknown_to_the_backend_only_warn() -> None:
    text = (
        'parameters { key: "intra_op_thread_count" value { string_value: "2" } }\n'
        'parameters { key: "intra_op_threads" value { string_value: "2" } }\n'
        'parameters { key: "execution" value { string_value: "inline" } }'
    )
    completion = completed(text, BATCHABLE)
    assert completion.config.execution is Execution.INLINE
    assert dict(completion.config.parameters) == {"execution": "inline", "intra_op_thread_count": "2", "intra_op_threads": "2"}
    (warning,) = warnings(completion)
    assert warning.startswith('m/config.pbtxt:2: parameters["intra_op_threads"]: backend ')
    assert "does not read it; did you mean 'intra_op_thread_count'?" in warning


def test_nice_of_a_model_is_configured() -> None:
    written = completed('parameters { key: "nice" value { string_value: "7" } }', BATCHABLE)
    assert (completed("", BATCHABLE).config.nice, written.config.nice, warnings(written)) == (0, 7, [])


def test_graph_level_labels_tags_and_warmups_reach_the_configuration() -> None:
    text = """max_batch_size: 4
        output { name: "y" label_filename: "labels.txt" }
        optimization { graph { level: -1 } } metric_tags { key: "team" value: "vision" }
        model_warmup { name: "w" batch_size: 2 inputs [
          { key: "x" value { data_type: TYPE_FP32 dims: [ 8, 3 ] random_data: true } },
          { key: "n" value { data_type: TYPE_INT64 dims: 1 input_data_file: "n.bin" } } ] }"""
    config = completed(text, BATCHABLE).config
    assert (config.graph_level, config.label_files, config.metric_tags) == (-1, {"y": "labels.txt"}, {"team": "vision"})
    (warmup,) = config.warmups
    assert (warmup.name, warmup.batch_size, warmup.count) == ("w", 2, 1)
    assert (warmup.inputs["x"].is_random, warmup.inputs["x"].dims, warmup.inputs["n"].data_file) == (True, (8, 3), "n.bin")
    assert completed("", BATCHABLE).config.graph_level is None


@pytest.mark.parametrize(
    ("sample", "field", "words"),
    [
        ("batch_size: 33", "model_warmup[0].batch_size", "takes 0 to 32"),
        ('inputs { key: "q" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }', 'model_warmup[0].inputs["q"]', "no such input"),
        (
            'inputs { key: "x" value { data_type: TYPE_FP16 dims: [8, 1] zero_data: true } }',
            'model_warmup[0].inputs["x"].data_type',
            "TYPE_FP32",
        ),
        ('inputs { key: "x" value { data_type: TYPE_FP32 dims: [7, 1] zero_data: true } }', 'model_warmup[0].inputs["x"].dims', "[8, -1]"),
        ("", "model_warmup[0].inputs", "lacks input(s) x, n"),
        (
            'batch_size: 32 inputs { key: "x" value { data_type: TYPE_FP32 dims: [8, 2000000] random_data: true } }',
            "model_warmup[0].inputs",
            "the sample would take 2048000000 bytes; at most 1073741824",
        ),
    ],
)
def test_invalid_warmups_are_refused(sample: str, field: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        completed(f"model_warmup {{ {sample} }}", BATCHABLE)
    assert words in {problem.field: problem.message for problem in caught.value.problems}[field]


def test_scheduler_on_an_unbatched_model_keeps_its_queue_settings_and_warns() -> None:
    completion = completed("dynamic_batching { default_queue_policy { max_queue_size: 3 } }", FIXED)
    assert completion.config.dynamic_batching is not None
    assert completion.config.dynamic_batching.default_queue_policy.max_queue_size == 3
    (warning,) = warnings(completion)
    assert "joins no requests" in warning


class _Particular(NamedBackend):
    """Reads the parameter `gear`, from 1 to 5, and cannot serve INT64."""

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        gear = candidate.parameters.get("gear", "1")
        if gear not in "12345":
            yield Violation(parameter_path("gear"), f"takes 1 to 5, not '{gear}'")
        for index, spec in enumerate(candidate.signature.inputs if candidate.signature else ()):
            if spec.datatype is INT64:
                yield Violation(f"input[{index}].data_type", "INT64 is not computed here")


GEARED = _Particular("geared", "model.onnx", parameter_keys=frozenset({"gear"}))
GEAR = 'parameters { key: "gear" value { string_value: "9" } }\n'


def test_field_that_the_backend_cannot_serve_is_reported_with_its_line() -> None:
    config = GEAR + "max_batch_size: 2\n" + X + N + Y
    assert problems_of(config, BATCHABLE, GEARED) == [
        "m/config.pbtxt:1: parameters[\"gear\"]: takes 1 to 5, not '9'",
        "m/config.pbtxt:4: input[1].data_type: INT64 is not computed here",
    ]


def test_bad_parameter_is_reported_beside_contradictions_of_the_file() -> None:
    unknown = 'parameters { key: "geer" value { string_value: "2" } }\n'
    with pytest.raises(ConfigError) as caught:
        completed(unknown + GEAR + "max_batch_size: 2\n" + X.replace("FP32", "INT8"), BATCHABLE, GEARED)
    assert [problem.field for problem in caught.value.problems] == ['parameters["gear"]', "input[0].data_type"]
    assert [(warning.line, warning.field) for warning in caught.value.warnings] == [(1, 'parameters["geer"]')]


def test_batch_size_after_growth_is_reported() -> None:
    completion = completed("max_batch_size: 32 dynamic_batching { }", BATCHABLE)
    assert finding(completion, "dynamic_batching")[1] == "preferred size 32 (max_batch_size, as none is written), delay 0 us"
    reason = finding(completed("", BATCHABLE), "max_batch_size")[1]
    assert reason == "32: the default for a file whose first dimensions are all open; write max_batch_size for more"


def test_decoupled_model_needs_a_backend_that_streams_and_threads() -> None:
    text = X + N + Y + "max_batch_size: 4 model_transaction_policy { decoupled: true }"
    assert "returns exactly one response to a request" in problems_of(text, BATCHABLE)[0]
    streaming = onnx_like()
    streaming.streams = True
    assert completed(text, BATCHABLE, streaming).config.signature.is_decoupled
    inline = 'parameters { key: "execution" value { string_value: "inline" } }'
    assert "'inline' is not possible" in problems_of(text + inline, BATCHABLE, streaming)[0]
    assert any("joins no requests" in text for text in warnings(completed(text + " dynamic_batching { }", BATCHABLE, streaming)))


def test_reason_for_missing_devices_is_in_the_error() -> None:
    backend = NamedBackend("card", "model.exec", instance_kinds=("KIND_CPU", "KIND_GPU"), why_no_devices="no card: plug one in")
    with pytest.raises(ConfigError) as caught:
        completed("instance_group {\n kind: KIND_GPU gpus: 0 }", BATCHABLE, backend)
    assert (
        caught.value.message == "m/config.pbtxt:2: instance_group[0].kind: backend 'card' has no device for KIND_GPU: no card: plug one in"
    )


ACCELERATED = """optimization { execution_accelerators {
    gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } }
    cpu_execution_accelerator { name: "openvino" }
} }
"""


def test_accelerators_reach_a_backend_that_takes_them() -> None:
    backend = NamedBackend("card", "m.exec", instance_kinds=("KIND_GPU", "KIND_CPU"), devices=(0,), takes_accelerators=True)
    config = completed(ACCELERATED, BATCHABLE, backend).config
    [on_gpu], [on_cpu] = config.gpu_accelerators, config.cpu_accelerators
    assert (on_gpu.name, on_gpu.parameters) == ("tensorrt", {"precision_mode": "FP16"})
    assert on_gpu.path == "optimization.execution_accelerators.gpu_execution_accelerator[0]"
    assert on_cpu.name == "openvino"


@pytest.mark.parametrize(
    ("backend", "warnings"),
    [
        (
            NamedBackend("card", "m.exec", takes_accelerators=True),
            {"gpu_execution_accelerator": "has no effect: no instance_group is of KIND_GPU"},
        ),
        (
            NamedBackend("card", "m.exec"),
            dict.fromkeys(("gpu_execution_accelerator", "cpu_execution_accelerator"), "the backend's own execution is used"),
        ),
    ],
)
def test_accelerators_without_effect_warn(backend: NamedBackend, warnings: dict[str, str]) -> None:
    completion = completed(ACCELERATED, BATCHABLE, backend)
    assert completion.config.gpu_accelerators == ()
    found = {finding.field.rpartition(".")[2]: finding.text for finding in completion.findings if finding.kind is FindingKind.WARNING}
    assert {key: text.rpartition("accelerator: ")[2] for key, text in found.items()} == warnings


SPLITS = 'parameters { key: "split_oversized_requests" value { string_value: "true" } }\n'


def test_requests_are_split_only_if_the_parameter_or_the_operator_says_so() -> None:
    assert completed("max_batch_size: 4", BATCHABLE).config.signature.request_rows == 4
    config = completed(f"max_batch_size: 4\n{SPLITS}", BATCHABLE).config
    assert (config.signature.max_batch_size, config.signature.request_rows) == (4, 4096)
    parsed = replace(empty_config("m"), batching_defaults=BatchingDefaults(max_batch_size=8, splits_oversized=True))
    assert complete(parsed, BATCHABLE, onnx_like(), "model.onnx").config.signature.request_rows == 8192


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "max_batch_size 0"),
        ("max_batch_size: 4\nsequence_batching { }", "sequence_batching"),
    ],
)
def test_split_contradicts_models_whose_rows_are_not_independent(text: str, reason: str) -> None:
    problems = problems_of(SPLITS + text, FIXED if not text else BATCHABLE)
    assert any(f'parameters["split_oversized_requests"]: contradicts {reason}' in problem for problem in problems)


def test_split_takes_true_or_false() -> None:
    (problem,) = problems_of(SPLITS.replace("true", "yes") + "max_batch_size: 4", BATCHABLE)
    assert problem.endswith("takes true or false, not 'yes'")
