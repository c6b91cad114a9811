"""Measured windows of the fronts become medians and verdicts."""

from benchmarks.front_cases import CASES, IMAGE_CASES
from benchmarks.fronts import FrontWindows, judge
from benchmarks.results import Window


def window(cpu_us: float, p50_ms: float = 0.1) -> Window:
    return Window(target="stoker", model="tiny", protocol="grpc", load="closed", server_cpu_us=cpu_us, p50_ms=p50_ms)


def measured(**by_target: list[Window]) -> FrontWindows:
    """The same windows for every case."""
    found = FrontWindows()
    for target, windows in by_target.items():
        for case in CASES:
            found.windows[target.replace("_", "-"), case.name] += windows
    return found


def test_each_bound_of_a_case_is_compared_with_the_median_of_its_rounds():
    verdicts = judge(measured(stoker=[window(90, 9), window(30, 0.1), window(20, 0.01)]), CASES, {"tiny": 5.0})
    wanted = [case.most_cpu_us for case in CASES if case.most_cpu_us] + [case.most_p50_ms for case in CASES if case.most_p50_ms]
    assert sorted(each.limit for each in verdicts) == sorted(wanted)
    assert {(each.measured, each.unit) for each in verdicts} == {(30, "us"), (0.1, "ms")}
    assert {each.floor: each.passed for each in verdicts}["gRPC, c = 32: server CPU per request"] is False  # 27 us are wanted


def test_model_time_is_subtracted_for_image_cases():
    found, case = FrontWindows(), IMAGE_CASES[0]
    found.windows["stoker", case.name] = [window(360), window(300), window(358)]
    (verdict,) = judge(found, [case], {"tiny": 5.0, "slice": 10.0})
    assert (verdict.measured, verdict.limit, verdict.passed) == (348, 350, True)
