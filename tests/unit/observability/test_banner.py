"""The table and the line that a started server prints."""

import io
import json
import subprocess
import sys

import pytest

from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.build_kind import BUILD
from stoker.server.core.state import IndexEntry, VersionState
from stoker.server.observability.banner import print_startup, without_ready_version

INDEX = [
    IndexEntry("digits", 1, VersionState.READY, backend="onnxruntime"),
    IndexEntry("broken", None, None, reason="config.pbtxt:3: unknown field 'nmae'\n[red]forged[/red]"),
    IndexEntry("old", 12, VersionState.FAILED, reason="no file", backend="identity"),
]
ADDRESSES = {"grpc": "127.0.0.1:40001", "http": "127.0.0.1:40002"}


def test_table_without_a_terminal_is_aligned_text_and_the_last_line_names_the_ports() -> None:
    stream = io.StringIO()
    print_startup(INDEX, ADDRESSES, stream=stream, is_terminal=False)
    assert stream.getvalue().splitlines() == [
        "model   version  backend      state   reason",
        "digits  1        onnxruntime  READY",
        r"broken  -        -            -       config.pbtxt:3: unknown field 'nmae'\n[red]forged[/red]",
        "old     12       identity     FAILED  no file",
        f"build: {BUILD}",
        "serving grpc on 127.0.0.1:40001, http on 127.0.0.1:40002",
    ]


def test_table_on_a_terminal_is_drawn_and_markup_in_a_reason_is_escaped() -> None:
    stream = io.StringIO()
    print_startup(INDEX, ADDRESSES, stream=stream, is_terminal=True)
    text = stream.getvalue()
    assert "\x1b[32mREADY" in text
    assert "\x1b[31mFAILED" in text
    assert "[red]" in text
    assert text.splitlines()[-1] == "serving grpc on 127.0.0.1:40001, http on 127.0.0.1:40002"


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(("length", "expected"), [(256, 0), (257, 1), (5000, 1)])
def test_cut_reason_is_followed_by_where_it_is_complete(is_terminal: bool, length: int, expected: int) -> None:
    stream = io.StringIO()
    index = [IndexEntry("broken", None, None, reason="r" * length)]
    print_startup(index, ADDRESSES, stream=stream, is_terminal=is_terminal)
    note = "reasons that end in ... are complete in the log, in 'stoker models' and in 'stoker check'"
    assert stream.getvalue().splitlines().count(note) == expected


def test_table_as_json_is_one_log_line() -> None:
    stream = io.StringIO()
    clock = FakeClock(wall_ms=1_700_000_000_500)
    print_startup(INDEX[:1], ADDRESSES, stream=stream, is_terminal=False, as_json=True, clock=clock)
    assert json.loads(stream.getvalue()) == {
        "ts": "2023-11-14T22:13:20.500Z",
        "level": "INFO",
        "logger": "stoker.startup",
        "event": "models",
        "message": "serving grpc on 127.0.0.1:40001, http on 127.0.0.1:40002",
        "addresses": ADDRESSES,
        "build": BUILD,
        "models": [{"model": "digits", "version": "1", "backend": "onnxruntime", "state": "READY", "reason": ""}],
        "notices": [],
        "not_ready": [],
    }
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("is_terminal", [True, False])
def test_server_that_is_not_ready_reports_it_before_the_ports(is_terminal: bool) -> None:
    stream = io.StringIO()
    print_startup(INDEX, ADDRESSES, stream=stream, is_terminal=is_terminal, not_ready=["broken", "o\nld"])
    assert stream.getvalue().splitlines()[-3:] == [
        f"build: {BUILD}",
        r"not ready: no READY version of broken, o\nld",
        "serving grpc on 127.0.0.1:40001, http on 127.0.0.1:40002",
    ]


def test_desired_models_without_a_ready_version_are_listed() -> None:
    half = [IndexEntry("half", 1, VersionState.READY), IndexEntry("half", 2, VersionState.FAILED, reason="no file")]
    unwanted = IndexEntry("unwanted", None, None)
    assert without_ready_version([*INDEX, *half, unwanted]) == ["broken", "old"]
    assert without_ready_version([*half, unwanted]) == ["unwanted"]
    assert without_ready_version(half) == []


def test_empty_repository_is_reported() -> None:
    stream = io.StringIO()
    print_startup([], ADDRESSES, stream=stream, is_terminal=True)
    assert stream.getvalue().splitlines()[0] == "no models in the repository"
    stream = io.StringIO()
    print_startup([], ADDRESSES, stream=stream, is_terminal=False, as_json=True, notices=["one more"])
    assert json.loads(stream.getvalue())["notices"] == ["no models in the repository", "one more"]


def test_rich_is_not_imported_until_a_table_is_drawn() -> None:
    code = "import sys, stoker.server.observability.banner; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_backend_notices_are_below_the_table() -> None:
    stream = io.StringIO()
    print_startup(INDEX[:1], ADDRESSES, stream=stream, is_terminal=False, notices=["a and b share device 0"])
    assert stream.getvalue().splitlines()[3] == "note: a and b share device 0"
    stream = io.StringIO()
    print_startup(INDEX[:1], ADDRESSES, stream=stream, is_terminal=False, as_json=True, notices=["a and b share device 0"])
    assert json.loads(stream.getvalue())["notices"] == ["a and b share device 0"]
