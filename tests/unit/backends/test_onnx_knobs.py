import pytest

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.onnx.knobs import MAX_THREADS, PARAMETER_KEYS, SESSION_ENTRIES, GraphOptimization, knob_violations, read_knobs
from stoker.backends.onnx.runtime_limits import bounds_spinning


def test_default_session_options_suit_a_server() -> None:
    knobs = read_knobs({}, None, 3)
    assert (knobs.intra_op_threads, knobs.inter_op_threads, knobs.parallel) == (3, 1, False)
    assert (knobs.mem_arena, knobs.mem_pattern, knobs.shrink_arena) == (True, True, "")
    assert knobs.graph is GraphOptimization.ALL
    assert knobs.entries == {
        "session.dynamic_block_base": "4",
        "session.intra_op.spin_duration_us": "50",
        "session.inter_op.spin_duration_us": "50",
    }


def test_runtime_that_cannot_bound_spinning_does_not_spin() -> None:
    entries = read_knobs({}, None, 3, bounds_spinning=False).entries
    assert entries == {
        "session.dynamic_block_base": "4",
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
    }


@pytest.mark.parametrize("wish", ["0", "1"])
def test_configured_spinning_is_applied_unchanged(wish: str) -> None:
    assert read_knobs({"session.intra_op.allow_spinning": wish}, None, 3).entries == {
        "session.dynamic_block_base": "4",
        "session.intra_op.allow_spinning": wish,
        "session.inter_op.spin_duration_us": "50",
    }


@pytest.mark.parametrize(("release", "bounds"), [("1.31.1", True), ("1.27.0", True), ("1.26.0", False), ("dev", False)])
def test_versions_that_bound_spinning_are_known(release: str, bounds: bool) -> None:
    assert bounds_spinning(release) is bounds


def test_configured_threads_override_and_zero_means_the_default() -> None:
    assert read_knobs({"intra_op_thread_count": "5"}, None, 3).intra_op_threads == 5
    assert read_knobs({"intra_op_thread_count": "0"}, None, 3).intra_op_threads == 3
    assert read_knobs({"execution_mode": "1"}, None, 3).inter_op_threads == 3
    assert read_knobs({"execution_mode": "1", "inter_op_thread_count": "2"}, None, 3).inter_op_threads == 2


@pytest.mark.parametrize(
    ("level", "graph"),
    [(-1, GraphOptimization.BASIC), (1, GraphOptimization.EXTENDED), (2, GraphOptimization.NONE), (0, GraphOptimization.ALL)],
)
def test_graph_levels_equal_tritons(level: int, graph: GraphOptimization) -> None:
    assert read_knobs({}, level, 1).graph is graph


def test_session_entries_are_passed_through_and_override() -> None:
    written = {
        "session.dynamic_block_base": "0",
        "session.intra_op.allow_spinning": "1",
        "session.disable_prepacking": "1",
        "session.unheard_of": "1",
    }
    assert read_knobs(written, None, 1).entries == {
        "session.dynamic_block_base": "0",
        "session.intra_op.allow_spinning": "1",
        "session.inter_op.spin_duration_us": "50",
        "session.disable_prepacking": "1",
    }


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"intra_op_thread_count": "-1"},
            "parameters[\"intra_op_thread_count\"]: takes a whole number from 0 (the default) to 1024, not '-1'",
        ),
        ({"intra_op_thread_count": str(MAX_THREADS + 1)}, "takes a whole number from 0"),
        ({"inter_op_thread_count": "1" * 5000}, f"to 1024, not '{'1' * 40}'"),
        ({"inter_op_thread_count": "²"}, "takes a whole number"),
        ({"execution_mode": "2"}, "parameters[\"execution_mode\"]: takes 0 (sequential) or 1 (parallel), not '2'"),
        ({"enable_mem_arena": "maybe"}, "parameters[\"enable_mem_arena\"]: takes 0 or 1, not 'maybe'"),
        ({"enable_mem_pattern": "2"}, "takes 0 or 1"),
        ({"memory.enable_memory_arena_shrinkage": "tpu:0"}, "takes cpu:0, gpu:N"),
        ({"memory.enable_memory_arena_shrinkage": "cpu:0", "enable_mem_arena": "0"}, "needs the arena"),
        ({"session.intra_op.allow_spinning": "yes"}, "parameters[\"session.intra_op.allow_spinning\"]: takes 0 or 1, not 'yes'"),
        ({"session.intra_op_thread_affinities": " "}, "takes for each thread but the first its processors"),
        ({"session.intra_op_thread_affinities": "1,2;all"}, "takes for each thread"),
        ({"session.intra_op.spin_duration_us": "a while"}, "takes a whole number"),
        ({"session.qdq_matmulnbits_accuracy_level": "5"}, "takes 0 to 4"),
    ],
)
def test_bad_value_is_refused_with_the_allowed_ones(parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_knobs(parameters, None, 1)
    assert text in caught.value.message


def test_unknown_graph_level_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"optimization\.graph\.level: takes -1 \(basic\), .* not 7"):
        read_knobs({}, 7, 1)


def test_all_errors_are_reported_at_once() -> None:
    written = {"execution_mode": "7", "intra_op_thread_count": "lots", "enable_mem_arena": "1"}
    fields = ['parameters["execution_mode"]', 'parameters["intra_op_thread_count"]', "optimization.graph.level"]
    assert [violation.field for violation in knob_violations(written, 9)] == fields
    assert knob_violations({"session.intra_op_thread_affinities": "1,2;3-4"}, 0) == ()


def test_session_entries_with_file_paths_are_refused() -> None:
    assert SESSION_ENTRIES.keys() <= PARAMETER_KEYS
    assert not [key for key in SESSION_ENTRIES if any(word in key for word in ("file", "path", "folder", "profil", "format", "save"))]
