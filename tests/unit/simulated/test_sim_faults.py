"""Plans of injected faults."""

import pytest

from stoker.backends.simulated.faults import Fault, FaultKind, FaultPlan


def test_plan_strikes_the_named_executions() -> None:
    plan = FaultPlan.parse("reset:link@2, hang@4")

    assert [plan.strike() for _ in range(5)] == [None, Fault(FaultKind.RESET, 2, "link"), None, Fault(FaultKind.HANG, 4), None]


def test_empty_text_plans_nothing() -> None:
    assert FaultPlan.parse(" ").strike() is None


@pytest.mark.parametrize("text", ["explode@1", "reset", "reset@", "reset@x", "@1", "reset@-1"])
def test_unknown_fault_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="lost, reset, hang, oom, bad"):
        FaultPlan.parse(text)


@pytest.mark.parametrize(("text", "reason"), [("bad@0", "counted from 1"), ("bad@3,oom@3", "two faults")])
def test_contradictory_plan_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FaultPlan.parse(text)
