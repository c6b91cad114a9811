"""Windows of two functions in random order, and figures with as many digits as they deserve."""

import pytest

import stoker.backends.cpu.comparison
from stoker.backends.cpu.comparison import LEAST_PAIRS, PAIRS, WINDOW_S, Speeds, measure, shown, uncertainty


class FakeClock:
    """Time that passes only when the test advances it."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


def run(source_s: float, compiled_s: float, seed: int = 0) -> tuple[Speeds, str]:
    clock, order = FakeClock(), []

    def take(name: str, seconds: float) -> None:
        order.append(name)
        clock.ns += int(seconds * 1e9)

    found = measure(lambda _: take("s", source_s), lambda _: take("c", compiled_s), seed=seed, clock=clock)  # type: ignore[arg-type]
    return found, "".join(order)


def test_each_pair_has_a_window_of_both_in_alternating_order() -> None:
    speeds, order = run(WINDOW_S, WINDOW_S / 2)
    assert (len(speeds.source), len(speeds.compiled)) == (PAIRS, PAIRS)
    assert (speeds.ratio, speeds.error) == (pytest.approx(2), pytest.approx(0))
    pairs = order[3:]  # after the first calls
    assert {"scc", "ccs"} == {pairs[at : at + 3] for at in range(0, len(pairs), 3)}


def test_order_is_determined_by_the_seed() -> None:
    assert run(WINDOW_S, WINDOW_S)[1] == run(WINDOW_S, WINDOW_S)[1] != run(WINDOW_S, WINDOW_S, seed=1)[1]


def test_slow_models_get_fewer_pairs() -> None:
    speeds, _ = run(stoker.backends.cpu.comparison.LONGEST_S, stoker.backends.cpu.comparison.LONGEST_S)
    assert len(speeds.source) == LEAST_PAIRS


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (918_765, 5_000, "919000"),
        (918_765, 60_000, "920000"),
        (918_765, 900_000, "900000"),
        (0.934, 0.02, "0.93"),
        (0.934, 0.2, "0.9"),
        (1.5, 0, "1.50"),
        (12.345, 0.001, "12.3"),
        (0.00123, 0.0001, "0.0012"),
        (1.2, 5, "1"),
    ],
)
def test_figures_are_rounded_to_their_uncertainty(value: float, error: float, text: str) -> None:
    assert shown(value, error) == text


def test_uncertainty_is_that_of_a_median() -> None:
    assert uncertainty([1.0]) == 0
    assert uncertainty([1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.57 * 1.5 / 2)
