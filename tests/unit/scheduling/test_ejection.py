"""Which instance gets the next batch, and how long one that fails is passed over."""

import pytest

from stoker.backends.api.batch import BatchResult
from stoker.backends.api.errors import BackendFailed, InvalidRequest, Unavailable
from stoker.server.scheduling.worker_pool import FIRST_EJECTION_NS, MAX_EJECTION_NS, InstanceEjections, is_outage
from tests.fakes.puppet_worker import rows_array

FREE = (1, 1, 1)
FAILED, WORKED = True, False


def test_worker_with_most_free_slots_is_chosen_and_none_if_all_are_busy() -> None:
    ejections = InstanceEjections()
    assert ejections.choose((1, 3, 2), 0) == 1
    assert ejections.choose((0, 0, 0), 0) is None


def test_failed_worker_is_skipped_while_others_are_healthy_even_if_busy() -> None:
    ejections = InstanceEjections()
    assert ejections.ended(0, FAILED, 0)
    assert ejections.choose((9, 1, 1), FIRST_EJECTION_NS - 1) == 1
    assert ejections.choose((9, 0, 0), FIRST_EJECTION_NS - 1) is None
    assert ejections.next_probe_ns(0) == FIRST_EJECTION_NS
    assert len(ejections) == 1


def test_ejected_worker_gets_one_probe_after_its_pause_and_serves_again_on_success() -> None:
    ejections = InstanceEjections()
    ejections.ended(0, FAILED, 0)
    assert ejections.choose(FREE, FIRST_EJECTION_NS) == 0
    assert ejections.choose(FREE, FIRST_EJECTION_NS) == 0, "a choice without a batch is no probe"
    ejections.dispatched(0)
    assert ejections.choose((5, 1, 1), FIRST_EJECTION_NS) == 1, "one batch only"
    assert ejections.next_probe_ns(FIRST_EJECTION_NS) is None
    assert ejections.ended(0, WORKED, FIRST_EJECTION_NS + 5)
    assert (len(ejections), ejections.choose((5, 1, 1), FIRST_EJECTION_NS + 5)) == (0, 0)


def test_each_failed_probe_doubles_the_pause_up_to_a_bound() -> None:
    ejections = InstanceEjections()
    now_ns = 0
    ejections.ended(0, FAILED, now_ns)
    pauses = []
    for _ in range(9):
        until_ns = ejections.next_probe_ns(now_ns)
        assert until_ns is not None
        pauses.append((until_ns - now_ns) // FIRST_EJECTION_NS)
        now_ns = until_ns
        assert ejections.choose(FREE, now_ns) == 0
        ejections.dispatched(0)
        assert not ejections.ended(0, FAILED, now_ns), "it is ejected already"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert MAX_EJECTION_NS == 60 * FIRST_EJECTION_NS


def test_batches_in_flight_at_the_failure_do_not_lengthen_the_pause() -> None:
    ejections = InstanceEjections()
    ejections.ended(0, FAILED, 0)
    ejections.ended(0, FAILED, 10)
    assert ejections.next_probe_ns(10) == FIRST_EJECTION_NS


def test_all_workers_are_used_if_all_are_ejected() -> None:
    ejections = InstanceEjections()
    for index in range(3):
        ejections.ended(index, FAILED, 0)
    assert ejections.choose((1, 2, 1), 1) == 1
    assert ejections.ended(1, WORKED, 2)
    assert ejections.choose((5, 1, 5), 2) == 1


def test_due_probe_without_a_slot_starts_no_timer() -> None:
    ejections = InstanceEjections()
    ejections.ended(0, FAILED, 0)
    assert ejections.choose((0, 0, 0), FIRST_EJECTION_NS) is None
    assert ejections.next_probe_ns(FIRST_EJECTION_NS) is None


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Unavailable("x"), Unavailable("x")], True),
        ([Unavailable("x"), {"OUT": rows_array(1)}], False),
        ([Unavailable("x"), BackendFailed("x")], False),
        ([BackendFailed("x")], False),
        ([InvalidRequest("x")], False),
        ([{"OUT": rows_array(1)}], False),
    ],
)
def test_only_a_batch_of_backend_failures_ejects(outcomes, expected):
    assert is_outage(BatchResult(outcomes)) == expected
