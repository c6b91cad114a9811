"""Single responses of decoupled models, counted by their position."""

from stoker.server.core.state import Duration, ModelStatistics
from stoker.server.observability.statistics import MOST_POSITIONS, ResponseCounts
from stoker.server.protocols.kserve.service import statistics_to_message


def test_responses_are_counted_by_position_over_all_requests():
    counts = ResponseCounts()
    for ends in ("well", "in an error"):
        counts.completed(0, 10)
        counts.completed(1, 5)
        if ends == "well":
            counts.ended(2, 1)
        else:
            counts.failed(2, 7)
    counts.completed(0, 10)
    counts.cancelled(1, 3)
    first, second, third = counts.snapshot()
    assert (first.success, first.compute_infer, first.fail) == (Duration(3, 30), Duration(3, 30), Duration())
    assert (second.success, second.cancel) == (Duration(2, 10), Duration(1, 3))
    assert (third.success, third.fail, third.empty_response) == (Duration(), Duration(1, 7), Duration(1, 1))
    assert third.compute_infer == Duration(1, 7)
    assert third.compute_output == Duration(0, 0)


def test_response_positions_are_listed_up_to_a_bound():
    counts = ResponseCounts()
    for position in range(MOST_POSITIONS + 5):
        counts.completed(position, 1)
    counts.ended(MOST_POSITIONS + 5, 1)
    assert len(counts.snapshot()) == MOST_POSITIONS


def test_protocol_lists_responses_by_number_for_decoupled_models_only():
    counts = ResponseCounts()
    counts.completed(0, 4)
    counts.ended(1, 2)
    statistics = ModelStatistics(name="m", version=1, responses=counts.snapshot())
    [decoupled, plain] = statistics_to_message([statistics, ModelStatistics(name="p", version=1)]).model_stats
    assert set(decoupled.response_stats) == {"0", "1"}
    assert decoupled.response_stats["0"].success.count == 1
    assert decoupled.response_stats["0"].success.ns == 4
    assert decoupled.response_stats["1"].empty_response.ns == 2
    assert not plain.response_stats
