"""`ensemble_scheduling`: what it means, and every error with its line, field and remedy."""

import pytest

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import to_pbtxt
from stoker.server.config.ensemble_completion import complete_ensemble, find_steps
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import parse_config_json, parse_pbtxt
from stoker.server.config.report import ConfigError, FindingKind
from stoker.server.core.ensemble import Ensemble, EnsembleStep, StepModel
from stoker.server.pb import model_config_pb2 as pb

FP32, INT32, BYTES = DataType.FP32, DataType.INT32, DataType.BYTES
CHAIN = """platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 2 ] }
ensemble_scheduling {
  step [
    {
      model_name: "first"
      model_version: -1
      input_map { key: "a" value: "IN" }
      output_map { key: "b" value: "between" }
    },
    {
      model_name: "second"
      model_version: 2
      input_map { key: "x" value: "between" }
      output_map { key: "y" value: "OUT" }
    }
  ]
}
"""


def read(text: str) -> ParsedConfig:
    return parse_pbtxt(text, source="e/config.pbtxt", model_name="e")


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return [str(problem).removeprefix("e/config.pbtxt:") for problem in caught.value.problems]


def model(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], rows: int = 8, version: int = 1, is_decoupled: bool = False
) -> StepModel:
    return StepModel(version, ModelSignature(inputs, outputs, rows, is_decoupled))


FIRST = model((TensorSpec("a", FP32, (4,)),), (TensorSpec("b", FP32, (3,)),))
SECOND = model((TensorSpec("x", FP32, (-1,)),), (TensorSpec("y", INT32, (2,)),), version=2)


def completion_problems(text: str, *models: StepModel) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        complete_ensemble(read(text), models)
    return [str(problem).removeprefix("e/config.pbtxt:") for problem in caught.value.problems]


def test_steps_are_read():
    assert read(CHAIN).ensemble == Ensemble((
        EnsembleStep(model="first", version=None, inputs={"a": "IN"}, outputs={"b": "between"}),
        EnsembleStep(model="second", version=2, inputs={"x": "between"}, outputs={"y": "OUT"}),
    ))  # fmt: skip


def test_version_that_is_not_written_is_the_newest():
    ensemble = read(CHAIN.replace("model_version: -1", "")).ensemble
    assert ensemble is not None
    assert ensemble.steps[0].version is None


def test_bound_on_requests_in_flight_is_read():
    ensemble = read(CHAIN.replace("ensemble_scheduling {", "ensemble_scheduling {\n max_inflight_requests: 5")).ensemble
    assert ensemble is not None
    assert ensemble.max_inflight_requests == 5


def test_plain_model_is_no_ensemble():
    assert read('backend: "onnxruntime"').ensemble is None


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('platform: "ensemble"', "", ["1: platform: must be 'ensemble' for a model with ensemble_scheduling"]),
        (
            'platform: "ensemble"',
            'platform: "onnxruntime_onnx"',
            ["1: platform: 'onnxruntime_onnx', but a model with ensemble_scheduling has platform 'ensemble'"],
        ),
        (
            'platform: "ensemble"',
            'platform: "ensemble" backend: "python"',
            ["1: backend: 'python', but an ensemble has no backend: its steps' models have; leave it out"],
        ),
        (
            "max_batch_size: 8",
            "max_batch_size: 8 instance_group { count: 2 }",
            ["2: instance_group: an ensemble has no instances: write instance groups for the models of its steps"],
        ),
        (
            "max_batch_size: 8",
            "max_batch_size: 8 dynamic_batching { }",
            [
                "5: ensemble_scheduling: contradicts 'dynamic_batching' (first on line 2): at most one of dynamic_batching, "
                "sequence_batching, ensemble_scheduling may be written"
            ],
        ),
        (
            "max_batch_size: 8",
            "max_batch_size: 8 optimization { graph { level: 1 } }",
            ["2: optimization: an ensemble computes nothing itself: write it for the models of its steps"],
        ),
        (
            "max_batch_size: 8",
            'max_batch_size: 8 model_warmup { name: "w" }',
            ["2: model_warmup: an ensemble is not warmed up: write it for the models of its steps"],
        ),
        ('model_name: "first"', "", ["7: ensemble_scheduling.step[0].model_name: must be written"]),
        (
            '"first"',
            '"e"',
            ["8: ensemble_scheduling.step[0].model_name: 'e' is the ensemble itself: an ensemble cannot be its own step"],
        ),
        (
            "model_version: -1",
            "model_version: -2",
            ["9: ensemble_scheduling.step[0].model_version: takes -1 (the newest ready version) or a version of at least 1, not -2"],
        ),
        (
            'key: "b" value: "between"',
            'key: "b" value: "betwen"',
            [
                "16: ensemble_scheduling.step[1].input_map[\"x\"]: tensor 'between' is neither an input of the ensemble nor the output of "
                "a step; did you mean 'betwen'? allowed: IN, betwen, OUT"
            ],
        ),
        (
            'value: "IN"',
            'value: "INN"',
            [
                "3: input[0].name: no step takes the tensor 'IN'; did you mean INN?",
                "10: ensemble_scheduling.step[0].input_map[\"a\"]: tensor 'INN' is neither an input of the ensemble nor the output of a "
                "step; did you mean 'IN'? allowed: IN, between, OUT",
            ],
        ),
        (
            'key: "y" value: "OUT"',
            'key: "y" value: "between"',
            [
                "4: output[0].name: no step writes the tensor 'OUT'; allowed: between",
                "17: ensemble_scheduling.step[1].output_map[\"y\"]: tensor 'between' is written by step[0] already: a tensor has one "
                "producer",
            ],
        ),
        (
            'key: "b" value: "between"',
            'key: "b" value: "between" } output_map { key: "c" value: "IN"',
            ["11: ensemble_scheduling.step[0].output_map[\"c\"]: tensor 'IN' is an input of the ensemble: no step can write it"],
        ),
        (
            'output { name: "OUT"',
            'output { name: "IN"',
            ["4: output[0].name: 'IN' is an input of the ensemble: a step must write an output"],
        ),
        (
            'input_map { key: "a" value: "IN" }',
            'input_map { key: "a" value: "IN" } input_map { key: "c" value: "OUT" }',
            ["7: ensemble_scheduling.step[0]: waits for its own output: step[0] 'first' -> step[1] 'second' -> step[0] 'first'"],
        ),
        ("data_type: TYPE_FP32", "", ["3: input[0].data_type: tensor 'IN': must be written in an ensemble"]),
        ("dims: [ 2 ]", "", ["4: output[0].dims: tensor 'OUT': must be written in an ensemble"]),
    ],
)  # fmt: skip
def test_error_names_line_field_and_remedy(old: str, new: str, expected: list[str]):
    assert old in CHAIN
    assert problems(CHAIN.replace(old, new, 1)) == expected


def test_unwritten_tensors_and_steps_are_reported():
    assert problems('platform: "ensemble"') == ["1: ensemble_scheduling: must be written: platform is 'ensemble'"]
    assert problems('platform: "ensemble" ensemble_scheduling { }') == [
        "1: input: must be written: an ensemble has no model file to take it from",
        "1: output: must be written: an ensemble has no model file to take it from",
        "1: ensemble_scheduling.step: must have at least one step",
    ]


def test_map_without_entries_is_reported():
    found = problems(CHAIN.replace('input_map { key: "x" value: "between" }', ""))
    assert found == ["13: ensemble_scheduling.step[1].input_map: must have at least one entry"]


def test_number_of_steps_is_bounded():
    step = 'step { model_name: "m" input_map { key: "a" value: "IN" } output_map { key: "b" value: "OUT" } }\n'
    assert problems(f'platform: "ensemble" ensemble_scheduling {{ {step * 257} }}')[-1].endswith("step: 257 steps; at most 256")


def test_tensor_that_no_step_takes_is_a_warning():
    parsed = read(CHAIN.replace('value: "between" }\n    },', 'value: "between" } output_map { key: "c" value: "rest" }\n    },'))
    assert parsed.warnings == (
        "e/config.pbtxt:11: ensemble_scheduling.step[0].output_map: the tensor 'rest' has no effect: no step takes it, and it is no output "
        "of the ensemble",
    )


def test_completed_ensemble_shows_clients_what_triton_shows():
    completion = complete_ensemble(read(CHAIN), [FIRST, SECOND])
    config = completion.config
    assert (config.backend, config.platform, config.instance_groups) == ("ensemble", "ensemble", ())
    assert config.signature == ModelSignature((TensorSpec("IN", FP32, (4,)),), (TensorSpec("OUT", INT32, (2,)),), 8)
    message = pb.ModelConfig.FromString(config.wire)
    assert (message.platform, message.backend) == ("ensemble", "")
    assert [step.model_version for step in message.ensemble_scheduling.step] == [-1, 2]
    assert not message.HasField("optimization")
    written = {finding.field: finding.text for finding in completion.findings if finding.kind is FindingKind.WRITTEN}
    assert written["ensemble_scheduling.step[0]"] == "model 'first', the newest ready version, now 1"
    assert written["ensemble_scheduling.step[1]"] == "model 'second', version 2"


def test_completed_ensemble_can_be_read_again():
    config = complete_ensemble(read(CHAIN), [FIRST, SECOND]).config
    assert complete_ensemble(read(to_pbtxt(config)), [FIRST, SECOND]).config == config


def test_json_override_is_read():
    text = """{"platform": "ensemble", "input": [{"name": "I", "data_type": "TYPE_FP32", "dims": [4]}],
      "output": [{"name": "O", "data_type": "TYPE_FP32", "dims": [3]}],
      "ensemble_scheduling": {"step": [{"model_name": "first", "model_version": -1, "input_map": {"a": "I"}, "output_map": {"b": "O"}}]}}"""
    parsed = parse_config_json(text, model_name="e")
    assert parsed.ensemble is not None
    assert parsed.ensemble.steps[0].inputs == {"a": "I"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            model((TensorSpec("c", FP32, (4,)),), (TensorSpec("b", FP32, (3,)),)),
            SECOND,
            [
                "10: ensemble_scheduling.step[0].input_map[\"a\"]: model 'first' has no input 'a'; allowed: c",
                "10: ensemble_scheduling.step[0].input_map: lacks input(s) c of model 'first'",
            ],
        ),
        (
            model((TensorSpec("a", FP32, (4,)),), (TensorSpec("logits", FP32, (3,)), TensorSpec("bb", FP32, (3,)))),
            SECOND,
            ["11: ensemble_scheduling.step[0].output_map[\"b\"]: model 'first' has no output 'b'; allowed: logits, bb"],
        ),
        (
            model((TensorSpec("a", FP32, (4,)),), (TensorSpec("b", BYTES, (3,)),)),
            SECOND,
            [
                "16: ensemble_scheduling.step[1].input_map[\"x\"]: output 'b' of step[0], model 'first' is TYPE_STRING [-1, 3], but "
                "input 'x' of model 'second' is TYPE_FP32 [-1, -1]"
            ],
        ),
        (
            model((TensorSpec("a", FP32, (5,)),), (TensorSpec("b", FP32, (3, 2)),)),
            SECOND,
            [
                "10: ensemble_scheduling.step[0].input_map[\"a\"]: input 'IN' of the ensemble is TYPE_FP32 [-1, 4], but input 'a' of model "
                "'first' is TYPE_FP32 [-1, 5]",
                "16: ensemble_scheduling.step[1].input_map[\"x\"]: output 'b' of step[0], model 'first' is TYPE_FP32 [-1, 3, 2], but "
                "input 'x' of model 'second' is TYPE_FP32 [-1, -1]",
            ],
        ),
        (
            FIRST,
            model((TensorSpec("x", FP32, (3,)),), (TensorSpec("y", INT32, (5,)),)),
            [
                "4: output[0]: output 'y' of step[1], model 'second' is TYPE_INT32 [-1, 5], but output 'OUT' of the ensemble is TYPE_INT32 "
                "[-1, 2]"
            ],
        ),
        (
            model((TensorSpec("a", FP32, (4,)),), (TensorSpec("b", FP32, (3,)),), rows=4),
            SECOND,
            ["2: max_batch_size: 8, but step[0], model 'first', takes batches of up to 4: write at most 4"],
        ),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_are_reported(first: StepModel, second: StepModel, expected: list[str]):
    assert completion_problems(CHAIN, first, second) == expected


def test_step_without_batches_needs_an_ensemble_without():
    unbatched = model((TensorSpec("a", FP32, (1, 4)),), (TensorSpec("b", FP32, (1, 3)),), rows=0)
    found = completion_problems(CHAIN, unbatched, SECOND)
    assert found[0] == "2: max_batch_size: 8, but step[0], model 'first', takes no batches (its max_batch_size is 0): write at most 0"
    text = CHAIN.replace("max_batch_size: 8", "").replace("dims: [ 4 ]", "dims: [ 1, 4 ]").replace("dims: [ 2 ]", "dims: [ -1, 2 ]")
    config = complete_ensemble(read(text), [unbatched, SECOND]).config
    assert config.signature.max_batch_size == 0


def test_optional_input_needs_steps_that_take_it_as_optional():
    text = CHAIN.replace("dims: [ 4 ]", "dims: [ 4 ] optional: true")
    assert completion_problems(text, FIRST, SECOND) == [
        "10: ensemble_scheduling.step[0].input_map[\"a\"]: input 'IN' of the ensemble is optional, but input 'a' of model "
        "'first' is required"
    ]
    optional = model((TensorSpec("a", FP32, (4,), optional=True),), (TensorSpec("b", FP32, (3,)),))
    assert complete_ensemble(read(text), [optional, SECOND]).config.signature.inputs[0].optional


def test_optional_input_of_a_step_need_not_be_mapped():
    more = model((TensorSpec("a", FP32, (4,)), TensorSpec("extra", FP32, (1,), optional=True)), (TensorSpec("b", FP32, (3,)),))
    assert complete_ensemble(read(CHAIN), [more, SECOND]).config.ensemble is not None


def test_ensemble_with_a_decoupled_step_is_decoupled():
    many = model((TensorSpec("a", FP32, (4,)),), (TensorSpec("b", FP32, (3,)),), is_decoupled=True)
    completion = complete_ensemble(read(CHAIN), [many, SECOND])
    assert completion.config.signature.is_decoupled
    assert pb.ModelConfig.FromString(completion.config.wire).model_transaction_policy.decoupled
    assert "true: 'first' is decoupled" in [finding.text for finding in completion.findings]


def test_responses_of_two_decoupled_branches_cannot_be_joined():
    many = model((TensorSpec("a", FP32, (4,)),), (TensorSpec("b", FP32, (4,)),), is_decoupled=True)
    text = CHAIN.replace('value: "between" }\n      output_map', 'value: "IN" }\n      output_map').replace(
        "TYPE_INT32 dims: [ 2 ] }", 'TYPE_FP32 dims: [ 4 ] } output { name: "between" data_type: TYPE_FP32 dims: [ 4 ] }'
    )
    other = model((TensorSpec("x", FP32, (4,)),), (TensorSpec("y", FP32, (4,)),), is_decoupled=True)
    assert completion_problems(text, many, other) == [
        "13: ensemble_scheduling.step[1]: model 'second' and step[0], model 'first', are decoupled and neither takes an output of the "
        "other: which of their responses belong together is not defined"
    ]


def test_decoupled_policy_without_a_decoupled_step_is_a_warning():
    completion = complete_ensemble(read(CHAIN + "model_transaction_policy { decoupled: true }"), [FIRST, SECOND])
    assert not completion.config.signature.is_decoupled
    warnings = [finding.text for finding in completion.findings if finding.kind is FindingKind.WARNING]
    assert warnings == [
        "e/config.pbtxt:21: model_transaction_policy.decoupled: has no effect: no step of the ensemble is decoupled"
    ]  # fmt: skip


def test_models_of_steps_are_found_in_the_repository():
    served = {"first": {1: FIRST.signature, 3: FIRST.signature}, "second": {2: SECOND.signature}, "e": None}
    assert [found.version for found in find_steps(read(CHAIN), served)] == [3, 2]


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        (
            {"frist": {1: FIRST.signature}, "second": {2: SECOND.signature}},
            "8: ensemble_scheduling.step[0].model_name: no model 'first' is in the repository; did you mean 'frist'? allowed: frist, "
            "second",
        ),
        (
            {"first": {}, "second": {2: SECOND.signature}},
            "8: ensemble_scheduling.step[0].model_name: model 'first' cannot be loaded: see its own problems",
        ),
        (
            {"first": {1: FIRST.signature}, "second": {3: SECOND.signature}},
            "15: ensemble_scheduling.step[1].model_version: model 'second' does not serve version 2; it serves 3",
        ),
        (
            {"first": None, "second": {2: SECOND.signature}},
            "8: ensemble_scheduling.step[0].model_name: model 'first' needs this ensemble itself",
        ),
    ],
)
def test_model_of_a_step_that_would_not_serve_is_reported(served: dict, expected: str):
    with pytest.raises(ConfigError) as caught:
        find_steps(read(CHAIN), served)
    assert str(caught.value) == f"e/config.pbtxt:{expected}"
