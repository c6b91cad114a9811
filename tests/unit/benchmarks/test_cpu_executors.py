import numpy as np
import pytest

from benchmarks.cpu_executors import EXECUTORS, Array, Figures, measure, ratio, table


def figures(name: str, target: float | None, **rows_per_s: list[float]) -> Figures:
    return Figures(name, target, {int(batch.removeprefix("b")): speeds for batch, speeds in rows_per_s.items()})


def test_ratio_is_best_batch_over_best_batch_of_the_same_round() -> None:
    raw = figures("raw", None, b1=[10, 30, 10], b8=[20, 20, 40])
    other = figures("other", 2.0, b1=[40, 1, 1], b8=[1, 30, 120])
    assert ratio(other, raw) == 2.0
    assert ratio(raw, raw) == 1.0


@pytest.mark.parametrize(("target", "verdict"), [(1.9, ">= 1.9 reached"), (2.1, ">= 2.1 missed"), (None, "")])
def test_table_lists_which_targets_are_reached(target: float | None, verdict: str) -> None:
    shown = table([figures("raw", None, b1=[10.0], b8=[10.0]), figures("other", target, b1=[20.0], b8=[5.0])], "title")
    columns = [list(column.cells) for column in shown.columns]
    assert columns[0] == ["raw", "other"]
    assert columns[3] == ["1.00", "2.00"]
    assert columns[4] == ["", verdict]


def test_executors_are_measured_in_turn_and_compared_with_the_first() -> None:
    calls: list[str] = []

    def run(name: str, factor: float) -> object:
        def response(images: Array) -> Array:
            calls.append(name)
            return np.stack([factor * image.reshape(-1)[:4] for image in images])

        return response

    first, second = measure([("raw", None, run("raw", 1.0)), ("other", 2.0, run("other", 1.5))], window_s=0.0, rounds=2)  # type: ignore[list-item]
    assert [len(speeds) for speeds in second.rows_per_s.values()] == [2, 2]
    assert first.max_abs == 0
    assert second.max_abs > 0
    assert second.cosine == pytest.approx(1)
    assert second.top1_agreement == 1
    assert calls[-4:] == ["raw", "raw", "other", "other"]


def test_targets_equal_those_of_the_performance_page() -> None:
    assert {each.name: each.target for each in EXECUTORS if each.target is not None} == {
        "onnx backend, fp32": 0.98,
        "openvino, bf16": 1.9,
        "openvino, int8 and bf16": 3.3,
    }
