"""Logs: one line an event, nothing forged, nothing raised, no caller blocked."""

import io
import json
import logging
import os
import select
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import LogLines
from stoker.server.observability.logs import (
    FIELD_LIMIT,
    MESSAGE_LIMIT,
    JsonFormatter,
    LogSink,
    TextFormatter,
    configure,
    escaped,
)
from stoker.server.observability.settings import LogSettings

log = logging.getLogger("stoker.test")


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return log.makeRecord(log.name, logging.INFO, "file.py", 1, message, args, None, extra=extra)


@contextmanager
def captured(settings: LogSettings) -> Iterator[io.StringIO]:
    """Logging configured onto a string, which is complete once the block has ended."""
    stream = io.StringIO()
    with configure(settings, stream=stream):
        yield stream


def test_json_line_contains_time_level_logger_message_and_extras() -> None:
    line = record("loaded %s", "digits", model="digits", version=3, seconds=0.25, event="loaded")
    line.created = 1_700_000_000.5
    assert json.loads(JsonFormatter().format(line)) == {
        "ts": "2023-11-14T22:13:20.500Z",
        "level": "INFO",
        "logger": "stoker.test",
        "message": "loaded digits",
        "model": "digits",
        "version": 3,
        "seconds": 0.25,
        "event": "loaded",
    }


def test_text_line_has_time_level_logger_message_and_extras() -> None:
    line = record("loaded", model="digits", version=3, reason="took long", empty="")
    line.created = 1_700_000_000.5
    assert TextFormatter().format(line) == (
        'I 2023-11-14T22:13:20.500Z stoker.test: loaded  model=digits version=3 reason="took long" empty=""'
    )


def test_text_line_omits_extras_of_its_message_and_nanoseconds() -> None:
    line = record("model '%s' version %d is ready", "digits", 1, model="digits", version=1, seconds=0.230132497, rows=12)
    assert TextFormatter().format(line).endswith("model 'digits' version 1 is ready  seconds=0.23 rows=12")
    assert json.loads(JsonFormatter().format(line))["seconds"] == 0.230132497


def test_unknown_value_is_a_dash_in_text_and_null_in_json() -> None:
    line = record("refused", version=None)
    assert TextFormatter().format(line).endswith("refused  version=-")
    assert json.loads(JsonFormatter().format(line))["version"] is None


@pytest.mark.parametrize(("message", "version"), [("took 10 s", 1), ("after 1.5 s", 1), ("digits2", 2), ("is True", True)])
def test_value_inside_another_word_of_the_message_is_still_an_extra(message: str, version: int) -> None:
    assert TextFormatter().format(record(message, version=version)).endswith(f"{message}  version={version}")


def test_extras_cannot_replace_the_fields_of_the_line() -> None:
    entry = json.loads(JsonFormatter().format(record("true", level="CRITICAL", ts="never", logger="nobody")))
    assert (entry["level"], entry["level_"], entry["ts_"], entry["logger_"]) == ("INFO", "CRITICAL", "never", "nobody")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
@given(hostile=st.text(st.characters(codec=None), max_size=400))
def test_client_data_neither_ends_the_line_nor_reaches_the_terminal(formatter: logging.Formatter, hostile: str) -> None:
    line = formatter.format(record("unknown model %s", hostile, model=hostile))
    assert line.splitlines() == [line]
    assert all(character.isprintable() or character.isspace() for character in line if ord(character) < 0xA0)
    line.encode("utf-8")


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\r\nE forged", r"a\r\nE forged"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\u2028b", r"a\u2028b"),
        ("\u202egpj.exe", r"\u202egpj.exe"),
        ("\x7f\x9b", r"\x7f\x9b"),
        ("\ud800", r"\ud800"),
        ("日本 é", "日本 é"),
    ],
)
def test_control_characters_are_escaped_and_letters_kept(hostile: str, shown: str) -> None:
    assert escaped(hostile) == shown
    assert json.loads(JsonFormatter().format(record("x", model=hostile)))["model"] == shown


@given(st.text(max_size=600))
def test_field_is_never_longer_than_its_limit(text: str) -> None:
    assert len(escaped(text)) <= FIELD_LIMIT


def test_long_fields_are_truncated_with_a_mark() -> None:
    entry = json.loads(JsonFormatter().format(record("%s", "m" * 1_000_000, model="x" * 1_000_000, at_limit="y" * FIELD_LIMIT)))
    assert entry["model"] == "x" * (FIELD_LIMIT - 3) + "..."
    assert entry["at_limit"] == "y" * FIELD_LIMIT
    assert len(entry["message"]) == MESSAGE_LIMIT


@pytest.mark.parametrize("is_json", [True, False], ids=["json", "text"])
def test_exception_is_one_field_and_forges_no_line(is_json: bool) -> None:
    with captured(LogSettings(format="json" if is_json else "text")) as stream:
        try:
            raise ValueError("bad\nE 2023-11-14T22:13:20.500Z stoker: forged\x1b[2J")
        except ValueError:
            log.exception("failed", extra={"model": "digits"})
    lines = stream.getvalue().splitlines()
    if is_json:
        (line,) = lines
        exception = json.loads(line)["exception"].splitlines()
    else:
        assert lines[0].startswith("E ")
        assert all(line.startswith("    | ") for line in lines[1:])
        exception = [line.removeprefix("    | ") for line in lines[1:]]
    assert exception[0] == "Traceback (most recent call last):"
    assert "ValueError: bad" in exception
    assert exception[-1].endswith(r"forged\x1b[2J")


@pytest.mark.parametrize("is_json", [True, False])
def test_lines_for_the_log_stand_where_a_traceback_would(is_json: bool) -> None:
    with captured(LogSettings(format="json" if is_json else "text")) as stream:
        log.error("ended; its last lines:", exc_info=LogLines(["first", "  forged\nline", "last\x1b[2J"]))
    first, *others = stream.getvalue().splitlines()
    if is_json:
        assert json.loads(first)["exception"] == "first\n  forged\nline\nlast\\x1b[2J"
        assert others == []
    else:
        assert others == ["    | first", "    |   forged", "    | line", r"    | last\x1b[2J"]


def test_auto_is_text_on_a_terminal_and_json_otherwise(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, file, is_json in ((Terminal(), None, False), (io.StringIO(), None, True), (Terminal(), tmp_path / "log", True)):
        with configure(LogSettings(file=file), stream=stream) as logs:
            assert logs.is_json is is_json


def test_log_file_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "stoker.log"
    for message in ("first", "second"):
        with configure(LogSettings(format="json", file=file)):
            log.info(message)
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["first", "second"]


def test_real_descriptor_is_written_to_and_left_open(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        with configure(LogSettings(format="text"), stream=stream):
            log.info("hello")
        stream.write("still open\n")
    first, last = (tmp_path / "out").read_text().splitlines()
    assert first.endswith("stoker.test: hello")
    assert last == "still open"


def test_log_detects_another_stream_of_the_same_file(tmp_path: Path) -> None:
    with (tmp_path / "both").open("w") as first, (tmp_path / "both").open("a") as second, (tmp_path / "other").open("w") as other:
        with configure(LogSettings(), stream=first) as logs:
            assert logs.shares_file_with(second)
            assert not logs.shares_file_with(other)
            assert not logs.shares_file_with(io.StringIO())
        with configure(LogSettings(), stream=io.StringIO()) as logs:
            assert not logs.shares_file_with(second)


def test_unopenable_file_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        configure(LogSettings(file=tmp_path / "missing" / "log"))


def test_each_level_is_enabled_separately() -> None:
    with captured(LogSettings(format="json", info=False, warning=True, error=False)) as stream:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            log.log(level, "x")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == ["WARNING"]


@pytest.mark.parametrize(
    ("verbose", "expected"), [(0, ["server info"]), (1, ["server debug", "server info"]), (2, ["server debug", "server info", "library"])]
)
def test_verbosity_enables_the_server_first_and_the_libraries_after(verbose: int, expected: list[str]) -> None:
    with captured(LogSettings(format="json", verbose=verbose)) as stream:
        log.debug("server debug")
        log.info("server info")
        logging.getLogger("uvicorn.error").info("library")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == expected


def test_foreign_loggers_and_python_warnings_use_the_same_sink() -> None:
    uvicorn = logging.getLogger("uvicorn.error")
    own = logging.StreamHandler(io.StringIO())
    uvicorn.addHandler(own)
    uvicorn.propagate = False
    try:
        with captured(LogSettings(format="json")) as stream, warnings.catch_warnings():
            warnings.simplefilter("always")
            uvicorn.warning("from uvicorn")
            logging.getLogger("grpc._cython.cygrpc").error("from grpc")
            warnings.warn("old thing", DeprecationWarning, stacklevel=1)
        assert [json.loads(line)["logger"] for line in stream.getvalue().splitlines()] == [
            "uvicorn.error",
            "grpc._cython.cygrpc",
            "py.warnings",
        ]
        assert uvicorn.handlers == [own], "closing puts everything back"
        assert uvicorn.propagate is False
        assert own.stream.getvalue() == ""
    finally:
        uvicorn.removeHandler(own)
        uvicorn.propagate = True


def test_unformattable_record_is_dropped_and_counted() -> None:
    class Raising:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    stream = io.StringIO()
    with configure(LogSettings(format="json"), stream=stream) as logs:
        log.info("%d", "not a number")
        log.info("x", extra={"value": Raising()})
        log.info("good")
        assert logs.dropped() == 2
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["good"]


class StuckWriter:
    """Accepts nothing until it is released; then fails every write."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, data: memoryview, /) -> int:
        self.reached.set()
        assert self.go.wait(30)
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        """Holds nothing."""


def test_stuck_reader_blocks_no_caller_and_a_full_disk_is_counted() -> None:
    writer = StuckWriter()
    sink = LogSink(writer, TextFormatter(), queue_lines=2)
    sink.handle(record("taken by the writer"))
    assert writer.reached.wait(30)
    for _ in range(5):
        sink.handle(record("two of these fit"))
    assert sink.dropped == 3
    writer.go.set()
    sink.close()
    assert sink.dropped == 6


class GatedWriter:
    """Accepts nothing until it is released; then as many bytes as it has space for."""

    def __init__(self, room_bytes: int) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self.writes: list[bytes] = []
        self._room_bytes = room_bytes

    def write(self, data: memoryview, /) -> int:
        self.reached.set()
        assert self.go.wait(30)
        accepted = bytes(data[: self._room_bytes])
        self._room_bytes -= len(accepted)
        self.writes.append(accepted)
        return len(accepted)

    def close(self) -> None:
        """Holds nothing."""


def test_lines_that_wait_together_are_written_together() -> None:
    writer = GatedWriter(1 << 20)
    sink = LogSink(writer, TextFormatter())
    sink.handle(record("taken by the writer"))
    assert writer.reached.wait(30)
    for number in range(100):
        sink.handle(record(f"line {number:3} {'x' * 100}"))
    writer.go.set()
    sink.close()
    assert sink.dropped == 0
    assert b"".join(writer.writes).count(b"\n") == 101
    assert len(writer.writes) <= 6
    assert all(len(each) <= select.PIPE_BUF and each.endswith(b"\n") for each in writer.writes), "a pipe keeps each write in one piece"


def test_line_is_counted_as_dropped_unless_written_whole() -> None:
    line = TextFormatter().format(record("equally long")) + "\n"
    writer = GatedWriter(len(line) * 3 + 5)
    sink = LogSink(writer, TextFormatter())
    sink.handle(record("equally long"))
    assert writer.reached.wait(30)
    for _ in range(4):
        sink.handle(record("equally long"))
    writer.go.set()
    sink.close()
    assert sink.dropped == 2


def test_partial_write_is_continued_with_the_rest() -> None:
    class Trickling:
        def __init__(self) -> None:
            self.got = b""

        def write(self, data: memoryview, /) -> int:
            self.got += bytes(data[:7])
            return min(7, len(data))

        def close(self) -> None:
            """Holds nothing."""

    writer = Trickling()
    sink = LogSink(writer, JsonFormatter())
    sink.handle(record("a rather long message"))
    sink.close()
    assert json.loads(writer.got)["message"] == "a rather long message"
    assert sink.dropped == 0


def test_pipe_without_reader_drops_lines_and_raises_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        logs = configure(LogSettings(), stream=stream)
        log.info("into the void")
        logs.close()
    assert logs.dropped() == 1


def test_flush_writes_everything_logged_before() -> None:
    stream = io.StringIO()
    with configure(LogSettings(format="json"), stream=stream) as logs:
        for _ in range(100):
            log.info("before")
        logs.flush()
        assert stream.getvalue().count("\n") == 100


def test_lines_logged_from_many_threads_are_not_mixed() -> None:
    def log_lines() -> None:
        for _ in range(50):
            log.info("x" * 100)

    with captured(LogSettings(format="json")) as stream:
        threads = [threading.Thread(target=log_lines) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["x" * 100] * 200


def test_logging_is_restored_and_a_second_close_is_harmless() -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.raiseExceptions, log.getEffectiveLevel())
    logs = configure(LogSettings(verbose=2), stream=io.StringIO())
    assert log.isEnabledFor(logging.DEBUG)
    logs.close()
    logs.close()
    assert (root.level, list(root.handlers), logging.raiseExceptions, log.getEffectiveLevel()) == before


def test_standard_error_is_the_default(capfd: pytest.CaptureFixture[str]) -> None:
    with configure(LogSettings(format="json")):
        log.info("there")
    assert json.loads(capfd.readouterr().err)["message"] == "there"
