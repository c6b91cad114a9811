import pytest

from backends.api.errors import ModelLoadError
from backends.onnx.knobs import MAX_THREADS, PARAMETER_KEYS, SESSION_ENTRIES, GraphOptimization, read_knobs


def test_unset_knobs_suit_a_server() -> None:
    knobs = read_knobs({}, None, 3)
    assert (knobs.intra_op_threads, knobs.inter_op_threads, knobs.parallel) == (3, 1, False)
    assert (knobs.mem_arena, knobs.mem_pattern, knobs.shrink_arena) == (True, True, False)
    assert knobs.graph is GraphOptimization.ALL
    assert knobs.entries == {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}


def test_written_threads_win_and_zero_means_the_default() -> None:
    assert read_knobs({"intra_op_thread_count": "5"}, None, 3).intra_op_threads == 5
    assert read_knobs({"intra_op_thread_count": "0"}, None, 3).intra_op_threads == 3
    assert read_knobs({"execution_mode": "1"}, None, 3).inter_op_threads == 3
    assert read_knobs({"execution_mode": "1", "inter_op_thread_count": "2"}, None, 3).inter_op_threads == 2


@pytest.mark.parametrize(
    ("level", "graph"),
    [(-1, GraphOptimization.BASIC), (1, GraphOptimization.EXTENDED), (2, GraphOptimization.NONE), (0, GraphOptimization.ALL)],
)
def test_graph_levels_are_tritons(level: int, graph: GraphOptimization) -> None:
    assert read_knobs({}, level, 1).graph is graph


def test_session_entries_pass_through_and_override() -> None:
    written = {"session.intra_op.allow_spinning": "1", "session.disable_prepacking": "1", "session.unheard_of": "1"}
    assert read_knobs(written, None, 1).entries == {
        "session.intra_op.allow_spinning": "1",
        "session.inter_op.allow_spinning": "0",
        "session.disable_prepacking": "1",
    }


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"intra_op_thread_count": "-1"}, "'intra_op_thread_count' is '-1', allowed: a whole number"),
        ({"intra_op_thread_count": str(MAX_THREADS + 1)}, "allowed: a whole number from 0"),
        ({"inter_op_thread_count": "1" * 5000}, "allowed: a whole number"),
        ({"inter_op_thread_count": "²"}, "allowed: a whole number"),
        ({"execution_mode": "2"}, "'execution_mode' is '2', allowed: 0 (sequential) or 1 (parallel)"),
        ({"enable_mem_arena": "maybe"}, "'enable_mem_arena' is 'maybe', allowed: 0 or 1"),
        ({"enable_mem_pattern": "2"}, "allowed: 0 or 1"),
        ({"memory.enable_memory_arena_shrinkage": "gpu:0"}, "allowed: cpu:0"),
        ({"memory.enable_memory_arena_shrinkage": "cpu:0", "enable_mem_arena": "0"}, "needs the arena"),
        ({"session.intra_op.allow_spinning": "yes"}, "'session.intra_op.allow_spinning' is 'yes', allowed: 0, 1"),
        ({"session.intra_op_thread_affinities": " "}, "allowed: some text"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(parameters: dict[str, str], text: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_knobs(parameters, None, 1)
    assert text in caught.value.message


def test_an_unknown_graph_level_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"optimization.graph.level is 7, allowed: -1 \(basic\)"):
        read_knobs({}, 7, 1)


def test_no_entry_reaches_the_file_system() -> None:
    assert SESSION_ENTRIES.keys() <= PARAMETER_KEYS
    assert not [key for key in SESSION_ENTRIES if any(word in key for word in ("file", "path", "folder", "profil", "format", "save"))]
