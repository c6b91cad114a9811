"""The peers mode compares each server with Triton and with the targets of the cases."""

import argparse
import io

import pytest
from rich.console import Console

from benchmarks.comparison import CPU_US, P50_MS, Comparison
from benchmarks.front_cases import CASES
from benchmarks.fronts import main
from benchmarks.peers import add_peer_options, peer_table
from benchmarks.results import Window


def window(target: str, cpu_us: float, p50_ms: float) -> Window:
    return Window(target=target, model="tiny", protocol="grpc", load="closed", server_cpu_us=cpu_us, p50_ms=p50_ms)


def test_each_server_has_its_ratio_and_verdict_in_each_case():
    comparison = Comparison("triton", "stoker", "native")
    for case in CASES[:2]:
        for _ in range(3):
            for each in (window("triton", 40, 0.2), window("stoker", 30, 0.19), window("native", 12, 0.16)):
                comparison.add_window(case.name, each)
    comparison.add_load(CASES[0].name, 0.0)
    comparison.add_load(CASES[1].name, 1.25)
    console = Console(file=io.StringIO(), width=200)
    table = peer_table(comparison, CASES[:2])
    assert all(column.header for column in table.columns)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lone, eight = ([cell.strip() for cell in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines() if "gRPC" in line)
    assert lone[1:] == ["p50 ms", "0.200", "<= 0.90", "0.190", "0.95", "(0.95-0.95) miss", "0.160", "0.80", "(0.80-0.80) pass", "0.00"]
    assert eight[1:] == ["CPU us", "40.0", "<= 0.36", "30.0", "0.75", "(0.75-0.75) miss", "12.0", "0.30", "(0.30-0.30) pass", "1.25"]


def test_a_lone_request_is_compared_by_its_latency_and_others_by_cpu_time():
    assert {case.name: case.peer_figure for case in CASES} == {
        case.name: P50_MS if "c = 1" in case.name.split(", ") else CPU_US for case in CASES
    }


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_peer_options(parser)
    return parser.parse_args(words)


def test_further_servers_are_named_commands():
    first, second = options("--command", "a=serve --grpc_port={grpc_port}", "--command", "b=other 'two words'").commands
    assert (first.name, first.words) == ("a", ("serve", "--grpc_port={grpc_port}"))
    assert (second.name, second.words) == ("b", ("other", "two words"))


@pytest.mark.parametrize("text", ["serve", "=serve", "a="])
def test_command_without_a_name_or_words_is_an_error(text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        options("--command", text)
    assert "is not NAME=WORDS" in capsys.readouterr().err


def test_peers_mode_has_no_case_of_a_protocol_that_triton_does_not_serve(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--peers", "--cases", "TensorFlow Serving"])
    assert "no case's name contains 'TensorFlow Serving'" in capsys.readouterr().err
