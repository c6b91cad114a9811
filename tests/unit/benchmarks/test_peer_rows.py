"""Rows a second are compared within a round, and not judged on a busy machine."""

import pytest

from benchmarks.peer_rows import BF16, RAW, SERVED, TRITON, judge
from benchmarks.requests import GRPC, HTTP_BINARY
from benchmarks.results import Window


def window(rows_per_s: float, foreign_cores: float = 0.0) -> Window:
    return Window(
        target="any", model="resnet50", protocol=GRPC, load="closed", rows_per_s=rows_per_s, foreign_cores=foreign_cores
    )  # fmt: skip


def test_each_ratio_is_of_windows_of_the_same_round():
    found = {
        (RAW, ""): [window(40), window(20), window(10)],
        (TRITON, GRPC): [window(30), window(20), window(10)],
        (SERVED, GRPC): [window(36), window(20), window(10)],
        (SERVED, HTTP_BINARY): [window(40), window(19), window(9)],
        (BF16, GRPC): [window(90), window(30), window(25)],
    }
    verdicts = {each.floor: each for each in judge(found)}
    assert {floor: (each.measured, each.passed) for floor, each in verdicts.items()} == {
        "resnet50 over raw onnxruntime, grpc: rows/s": (1.0, True),
        "resnet50 over raw onnxruntime, http-binary: rows/s": (0.95, False),
        "resnet50-bf16 over triton, grpc: rows/s": (2.5, True),
    }
    assert verdicts["resnet50 over raw onnxruntime, grpc: rows/s"].evidence == "0.9, 1, 1"


@pytest.mark.parametrize(("foreign_cores", "is_clear"), [(0.0, True), (1.0, False)])
def test_verdict_of_a_busy_machine_is_unclear(foreign_cores: float, is_clear: bool):
    (verdict,) = judge({(RAW, ""): [window(40)], (SERVED, GRPC): [window(40, 2 * foreign_cores)]})
    assert verdict.is_clear is is_clear
