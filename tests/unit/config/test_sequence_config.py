"""`sequence_batching` in a configuration: its result, and its refusals."""

import pytest

from stoker.backends.api.model import FileTensor, ModelFacts, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.config.complete import complete
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.config.report import ConfigError
from stoker.server.core.model_config import DynamicBatching, ModelConfig
from stoker.server.core.sequence import ControlInput, ControlKind, SequenceBatching, SequenceState
from tests.fakes.named_backends import onnx_like

FP32, INT32 = DataType.FP32, DataType.INT32
FACTS = ModelFacts(
    (FileTensor("x", FP32, (-1, 1)), FileTensor("START", INT32, (-1, 1)), FileTensor("was", FP32, (-1, 1))),
    (FileTensor("y", FP32, (-1, 1)), FileTensor("is", FP32, (-1, 1))),
)
START = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
AGAIN = START.replace('"START"', '"AGAIN"')
STATE = 'state { input_name: "was" output_name: "is" data_type: TYPE_FP32 dims: 1 }'


def config_of(inside: str, more: str = "max_batch_size: 4") -> ModelConfig:
    text = f"{more} sequence_batching {{ {inside} }}"
    return complete(parse_pbtxt(text, source="m", model_name="m"), FACTS, onnx_like(), "model.onnx").config


def problems_of(inside: str, more: str = "max_batch_size: 4") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_of(inside, more)
    return [problem.field for problem in caught.value.problems]


def test_control_inputs_are_hidden_from_clients():
    config = config_of(
        f"max_sequence_idle_microseconds: 5 oldest {{ max_candidate_sequences: 9 max_queue_delay_microseconds: 3 }} {START} {STATE}"
    )
    assert config.signature.inputs == (TensorSpec("x", FP32, (1,)),)
    assert config.signature.outputs == (TensorSpec("y", FP32, (1,)),)
    state = SequenceState(TensorSpec("was", FP32, (1,)), TensorSpec("is", FP32, (1,)), (1,))
    assert config.sequences == SequenceBatching(5, 9, (ControlInput(ControlKind.START, "START", INT32, (0, 1)),), (state,))
    assert [spec.name for spec in config.inner.signature.inputs] == ["x", "START", "was"]
    assert [spec.name for spec in config.inner.signature.outputs] == ["y", "is"]
    assert config.dynamic_batching == DynamicBatching(max_queue_delay_us=3)


def test_defaults_equal_tritons():
    config = config_of(f"direct {{ }} {START} {STATE}", "max_batch_size: 4 instance_group { count: 2 }")
    assert config.sequences is not None
    assert (config.sequences.idle_us, config.sequences.most_sequences) == (1_000_000, 8)


@pytest.mark.parametrize(
    ("inside", "field"),
    [
        (f'control_input {{ name: "START" }} {STATE}', "sequence_batching.control_input[0].control"),
        (f"{START.replace('int32_false_true: [ 0, 1 ]', '')} {STATE}", "sequence_batching.control_input[0].control[0]"),
        (f"{START.replace('[ 0, 1 ]', '[ 0 ]')} {STATE}", "sequence_batching.control_input[0].control[0]"),
        (
            f'control_input {{ name: "START" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }} }} {STATE}',
            "sequence_batching.control_input[0].control[0].data_type",
        ),
        (f"{START} {AGAIN} {STATE}", "sequence_batching.control_input[1].control[0].kind"),
        (f"{START} {STATE.replace('dims: 1', '')}", "sequence_batching.state[0]"),
        (
            f"{START} {STATE.replace('dims: 1', 'dims: 1 initial_state { data_file: @../f@ }').replace('@', chr(34))}",
            "sequence_batching.state[0].initial_state[0].data_file",
        ),
        (
            f"{START} {STATE.replace('dims: 1', 'dims: 1 initial_state { dims: 2 zero_data: true }')}",
            "sequence_batching.state[0].initial_state[0].dims",
        ),
        (f"direct {{ minimum_slot_utilization: 1.5 }} {START} {STATE}", "sequence_batching.direct.minimum_slot_utilization"),
        (f"oldest {{ max_candidate_sequences: -5 }} {START} {STATE}", "sequence_batching.oldest.max_candidate_sequences"),
        (f"oldest {{ max_candidate_sequences: 70000 }} {START} {STATE}", "sequence_batching.oldest.max_candidate_sequences"),
        (f"oldest {{ preferred_batch_size: [ 2, 9 ] }} {START} {STATE}", "sequence_batching.oldest.preferred_batch_size[1]"),
        (f"{START} {STATE.replace('dims: 1', 'dims: [ 0 ]')}", "sequence_batching.state[0].dims"),
        (f"{START} {STATE.replace('dims: 1', 'dims: [ 100000, 100000 ]')}", "sequence_batching.state[0].dims"),
    ],
)
def test_impossible_sequence_settings_are_named(inside, field):
    assert field in problems_of(inside)


def test_control_input_with_a_client_visible_name_is_refused():
    text = 'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: 1 }'
    assert "sequence_batching" in problems_of(START.replace("START", "x", 1), text)


def test_batch_of_the_minimum_slot_utilization_does_not_wait_for_more():
    config = config_of(f"direct {{ minimum_slot_utilization: 0.6 max_queue_delay_microseconds: 9 }} {START} {STATE}")
    assert config.dynamic_batching == DynamicBatching(preferred_batch_sizes=(3, 4), max_queue_delay_us=9)


def test_initial_state_may_come_from_a_file():
    config = config_of(f"{START} {STATE.replace('dims: 1', 'dims: 1 initial_state { dims: 1 data_file: @f@ }').replace('@', chr(34))}")
    assert config.sequences is not None
    (state,) = config.sequences.states
    assert (state.initial_file, state.initial_dims, state.initial) == ("f", (1,), None)


@pytest.mark.parametrize(("state", "count", "is_error"), [("", 2, True), ("", 1, False), (STATE, 2, False)])
def test_model_that_keeps_the_state_of_its_sequences_itself_takes_one_instance(state, count, is_error):
    backend = onnx_like()
    backend.runs_model_code = True
    text = f"max_batch_size: 4 instance_group {{ count: {count} }} sequence_batching {{ {START} {state} }}"
    parsed = parse_pbtxt(text, source="m", model_name="m")
    assert FACTS.inputs is not None
    assert FACTS.outputs is not None
    facts = FACTS if state else ModelFacts(FACTS.inputs[:2], FACTS.outputs[:1])
    if not is_error:
        assert complete(parsed, facts, backend, "model.onnx").config.sequences is not None
        return
    with pytest.raises(ConfigError, match="takes one instance, not 2"):
        complete(parsed, facts, backend, "model.onnx")


ITERATIVE = f"{START} {STATE} iterative_sequence: true"
DECOUPLED = "max_batch_size: 4 model_transaction_policy { decoupled: true }"


def iterative_config(more: str, *, may_reschedule: bool) -> ModelConfig:
    backend = onnx_like()
    backend.reschedules = may_reschedule
    backend.streams = True
    parsed = parse_pbtxt(f"{more} sequence_batching {{ {ITERATIVE} }}", source="m", model_name="m")
    return complete(parsed, FACTS, backend, "model.onnx").config


@pytest.mark.parametrize("more", ["max_batch_size: 4", DECOUPLED])
def test_iterative_sequences_also_of_decoupled_models_share_batches(more):
    config = iterative_config(more, may_reschedule=True)
    assert config.sequences is not None
    assert config.sequences.is_iterative
    assert (config.signature.is_iterative, config.inner.signature.is_iterative) == (False, True)
    assert config.dynamic_batching == DynamicBatching()


def test_iterative_sequences_of_a_backend_without_further_executions_give_a_warning():
    parsed = parse_pbtxt(f"max_batch_size: 4 sequence_batching {{ {ITERATIVE} }}", source="m", model_name="m")
    completion = complete(parsed, FACTS, onnx_like(), "model.onnx")
    warnings = [finding.text for finding in completion.findings if "iterative_sequence" in finding.text]
    assert len(warnings) == 1
    assert "each request is executed once" in warnings[0]
    assert completion.config.sequences is not None
    assert completion.config.sequences.is_iterative


def test_decoupled_sequences_that_are_not_iterative_are_refused():
    assert "sequence_batching" in problems_of(f"{START} {STATE}", DECOUPLED)
    with pytest.raises(ConfigError, match=r"contradicts model_transaction_policy\.decoupled"):
        iterative_config(DECOUPLED, may_reschedule=False)
