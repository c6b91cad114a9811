"""Ratios of two contenders, their spread, and the warning on a busy machine."""

import argparse
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.comparison import CPU_US, RATE, Comparison, add_baseline_options, compare_windows, contenders
from benchmarks.load import Generator, InFlight
from benchmarks.models import CHECKOUT, BenchModel
from benchmarks.requests import GRPC, Request, request_of
from benchmarks.results import Window
from benchmarks.servers import Command, EchoServer, ServerUnderTest


def window(target: str, cpu_us: float, rate: float = 100.0) -> Window:
    return Window(target=target, model="tiny", protocol="grpc", load="closed", server_cpu_us=cpu_us, requests_per_s=rate)


def filled(old: list[float], new: list[float], foreign_cores: float = 0.0) -> Comparison:
    comparison = Comparison("baseline", "stoker")
    for before, after in zip(old, new, strict=True):
        comparison.add_window("c = 1", window("baseline", before, 1e6 / before))
        comparison.add_window("c = 1", window("stoker", after, 1e6 / after))
    comparison.add_load("c = 1", foreign_cores)
    return comparison


def printed(comparison: Comparison) -> str:
    console = Console(file=io.StringIO(), width=200)
    comparison.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_ratios_are_of_the_best_window_and_of_the_medians():
    comparison = filled([100, 200, 900], [80, 180, 190])
    assert comparison.ratios("c = 1", CPU_US, "stoker") == pytest.approx((0.8, 0.9))


def test_best_rate_is_the_highest():
    assert filled([100, 200], [50, 400]).ratios("c = 1", RATE, "stoker")[0] == pytest.approx(2.0)


def test_table_shows_every_figure_and_the_spread_of_the_pairs():
    text = printed(filled([100.0] * 11, [90.0 + each * 2 for each in range(11)]))
    line = next(each for each in text.splitlines() if "CPU us" in each)
    assert [each.strip() for each in line.split("│")[1:-1]] == [
        "c = 1",
        "CPU us",
        "100.0",
        "100.0",
        "90.0",
        "100.0",
        "0.900",
        "1.000",
        "0.92-1.08",
        "11",
        "0.00",
    ]
    assert all(name in text for name in ("p50 ms", "p99 ms", "req/s"))


def test_busy_machine_is_reported_with_the_worst_case():
    assert "warning" not in printed(filled([1.0], [1.0], 0.1))
    assert "busy in 1 of 1 cases (others used up to 1.20 cores, in 'c = 1')" in printed(filled([1.0], [1.0], 1.2)).replace("\n", " ")


class Turns(Generator):
    """A generator that records the order of the servers."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def closed(self, server: ServerUnderTest, request: Request, in_flight: InFlight, requests: int, repeat: int = 0) -> Window:
        self.order.append(server.name)
        return window(server.name, 1.0)


def test_contenders_take_turns_in_both_orders_after_a_window_each_to_warm():
    turns, servers = Turns(), [EchoServer(name) for name in ("a", "b")]
    request = request_of(BenchModel(name="m", path=Path(), input_name="x", row=np.ones((1, 1), np.float32)), GRPC)
    compare_windows(Comparison("echo-a", "echo-b"), "cell", turns, servers, request, InFlight(1), windows=2, requests=1)
    assert "".join(name[-1] for name in turns.order) == "ababba"


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_baseline_options(parser)
    return parser.parse_args(words)


def test_without_a_baseline_only_this_checkout_is_measured():
    assert [each.name for each in contenders(options())] == ["stoker"]


@pytest.mark.parametrize(("main", "module"), [("server/stoker/server/main.py", "stoker.server.main"), ("server/main.py", "server.main")])
def test_baseline_checkout_may_have_its_packages_in_the_namespace_or_at_top_level(tmp_path: Path, main: str, module: str):
    (tmp_path / main).parent.mkdir(parents=True)
    (tmp_path / main).touch()
    baseline, _ = contenders(options("--baseline", str(tmp_path), "--baseline-python", sys.executable))
    assert not isinstance(baseline, Command)
    assert baseline.command == (sys.executable, "-m", module)
    assert str(tmp_path / "clients/python") in (baseline.python_path or "").split(":")


def test_folder_without_a_server_is_rejected_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(SystemExit) as ended:
            options("--baseline", str(folder))
        assert ended.value.code == 2
        assert f"{folder} is no checkout of Stoker: it holds neither server/stoker/server/main.py nor" in capsys.readouterr().err


def test_missing_interpreter_of_the_baseline_is_rejected_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        options("--baseline-python", str(tmp_path / "python"))
    assert ended.value.code == 2
    assert f"there is no program '{tmp_path / 'python'}'" in capsys.readouterr().err


def test_baseline_may_be_any_command():
    baseline, measured = contenders(options("--baseline-command", "other --models={repository} '--http={http_port}'"))
    assert isinstance(baseline, Command)
    assert baseline.words == ("other", "--models={repository}", "--http={http_port}")
    assert not isinstance(measured, Command)
    assert measured.folder == CHECKOUT
