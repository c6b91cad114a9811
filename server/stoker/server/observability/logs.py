"""Logging: one sink with its own writer thread. A request never waits for a log line.

A record may contain values from a client (a model name, a request id, a header). Control characters, line and paragraph separators and
bidirectional overrides are therefore escaped, and every field is cut. Two forms: `JsonFormatter` for machines,
one object a line; `TextFormatter` for people at a terminal.

Packages log through `logging.getLogger("stoker.<package>")` and pass values as `extra={"model": ..., "version": ...}`. A record is
formatted in the thread that logs it and passed to the writer thread. Lines that wait together are written together, as far as a pipe keeps
a write in one piece. If the reader of the output stalls, or the disk is full, lines are dropped and counted
(`stoker_log_lines_dropped_total`).
"""

import contextlib
import io
import json
import logging
import os
import queue
import re
import select
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from types import NoneType, TracebackType
from typing import Protocol, Self, TextIO

from stoker.backends.api.errors import LogLines
from stoker.server.observability.settings import LogSettings

_NS_PER_S = 1_000_000_000


class LineBudget:
    """A token bucket of log lines for each second. Confined to: one caller at a time."""

    __slots__ = ("_left", "_per_s", "_suppressed", "_updated_ns")

    def __init__(self, per_s: int) -> None:
        """Makes a full bucket: that many lines may be logged at once."""
        self._per_s = per_s
        self._left = float(per_s)
        self._updated_ns: int | None = None
        self._suppressed = 0

    def take(self, now_ns: int) -> int | None:
        """Takes one line: returns the number of lines rejected since the last accepted one; None: this line is rejected."""
        if self._updated_ns is not None:
            self._left = min(self._per_s, self._left + (now_ns - self._updated_ns) * self._per_s / _NS_PER_S)
        self._updated_ns = now_ns
        if self._left < 1:
            self._suppressed += 1
            return None
        self._left -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed

    def leave_out(self, count: int) -> None:
        """Counts `count` lines as rejected."""
        self._suppressed += count


FIELD_LIMIT = 256
#: Bound on a message, characters: our own template with values filled in, longer than a single value.
MESSAGE_LIMIT = 2048
EXCEPTION_LIMIT = 16_384

# C0, DEL, C1, line and paragraph separators, everything that changes writing direction, the byte order mark, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# The attributes that the logging module sets on a record; all others come from `extra`.
_OWN_ATTRIBUTES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"})
#: Values that are shown as they are.
_PLAIN = (bool, int, float, NoneType)
# The names of our own fields: an `extra` of such a name must not replace them.
_RESERVED = frozenset({"ts", "level", "logger", "message", "exception"})


def escaped(text: str, limit: int = FIELD_LIMIT) -> str:
    """`text` on one line: unsafe characters shown as backslash escapes, at most `limit` characters (a cut text ends in `...`)."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    # Cut first: a megabyte from a client is not worth escaping. Escapes may lengthen the text, so it is cut again.
    clean = _UNSAFE.sub(_escape, text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


#: As `json.dumps`, which makes an encoder for each call with a `default`.
_encode = json.JSONEncoder(default=str).encode


class JsonFormatter(logging.Formatter):
    """One JSON object: ts (RFC 3339, UTC), level, logger, message, the record's extras, exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": escaped(record.getMessage(), MESSAGE_LIMIT),
        }
        entry.update(_extras(record))
        exception = "\n".join(_exception_lines(record))
        if exception:
            entry["exception"] = exception
        return _encode(entry)


class TextFormatter(logging.Formatter):
    """`I 2026-01-31T12:00:00.123Z stoker.lifecycle: message  key=value ...`; an exception follows, each line marked with a bar.

    For people: a value that the message contains is not repeated, numbers have three decimals, and an unknown value is a dash.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = escaped(record.getMessage(), MESSAGE_LIMIT)
        line = f"{record.levelname[:1]} {_timestamp(record)} {record.name}: {message}"
        shown = ((key, round(value, 3) if isinstance(value, float) else value) for key, value in _extras(record))
        fields = " ".join(f"{key}={_quoted(value)}" for key, value in shown if not _is_said(value, message))
        return "\n".join([f"{line}  {fields}" if fields else line, *(f"    | {part}" for part in _exception_lines(record))])


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extras(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for key, value in vars(record).items():
        if key in _OWN_ATTRIBUTES:
            continue
        name = escaped(key, 64)
        yield (f"{name}_" if name in _RESERVED else name), value if isinstance(value, _PLAIN) else escaped(str(value))


def _is_said(value: object, message: str) -> bool:
    """Whether `value` is a separate word of `message`: "took 10 s" does not contain version 1."""
    text = str(value)
    if isinstance(value, bool) or value is None or not text or text not in message:
        return False
    return re.search(rf"(?<![\w.]){re.escape(text)}(?![\w]|\.\d)", message) is not None


def _exception_lines(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[1] is None:
        return []
    error = record.exc_info[1]
    text = "\n".join(error.lines) if isinstance(error, LogLines) else "".join(traceback.format_exception(error)).rstrip("\n")
    # Of a long text the end is kept: it contains the error.
    return [escaped(line, MESSAGE_LIMIT) for line in text[-EXCEPTION_LIMIT:].split("\n")]


def _quoted(value: object) -> str:
    text = "-" if value is None else str(value)
    return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


#: Lines that may wait for the writer before further ones are dropped: enough for the start of a server, a few MB at most.
QUEUE_LINES = 10_000
_CLOSE_TIMEOUT_S = 2.0

# Libraries with their own handlers or with many INFO lines; they get WARNING and above unless `verbose` is higher.
_FOREIGN = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "grpc", "grpc._cython", "asyncio", "watchfiles", "fastapi")


class RawWriter(Protocol):
    """An unbuffered binary file: `write` may write only a part, and returns its length."""

    def write(self, data: memoryview, /) -> int | None:
        """Returns the number of bytes written; None or 0 if none can be written now."""

    def close(self) -> None:
        """Closes the file."""


class LogSink(logging.Handler):
    """Formats records and writes them in its own thread. Confined to: any thread may log; one writer thread writes."""

    def __init__(self, raw: RawWriter, formatter: logging.Formatter, queue_lines: int = QUEUE_LINES) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._raw = raw
        self._queue_lines = queue_lines
        # Lines. An event is set once everything before it is written; None ends the writer.
        self._lines: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        # Two counters with one kind of writer each: the first under the handler's lock, the second in the writer thread only.
        self._not_queued = 0
        self._not_written = 0
        self._is_closed = False
        self._writer = threading.Thread(target=self._write_all, name="stoker-log", daemon=True)
        self._writer.start()

    @property
    def dropped(self) -> int:
        """The number of lines that were never written."""
        return self._not_queued + self._not_written

    def emit(self, record: logging.LogRecord) -> None:
        if self._lines.qsize() >= self._queue_lines:
            self._not_queued += 1
            return
        try:
            self._lines.put((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001 - a record that cannot be formatted (a raising __str__, bad arguments) must not fail the request
            self._not_queued += 1

    def flush(self) -> None:
        """Waits until all earlier lines are written, for two seconds at most."""
        if not self._is_closed:
            written = threading.Event()
            self._lines.put(written)
            written.wait(_CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Writes pending lines, for two seconds at most, and ends the writer."""
        if not self._is_closed:
            self._is_closed = True
            self._lines.put(None)
            self._writer.join(_CLOSE_TIMEOUT_S)
        super().close()

    def _write_all(self) -> None:
        item = self._lines.get()
        while item is not None:
            if isinstance(item, threading.Event):
                item.set()
                item = self._lines.get()
            else:
                item = self._write_from(item)

    def _write_from(self, line: bytes) -> bytes | threading.Event | None:
        """Writes `line` and those that wait behind it at once, as each write hands the interpreter over; returns the item after them."""
        lines, size_bytes = [line], len(line)
        while not self._lines.empty():
            item = self._lines.get()
            if not isinstance(item, bytes) or size_bytes + len(item) > select.PIPE_BUF:
                self._write(lines)
                return item
            lines.append(item)
            size_bytes += len(item)
        self._write(lines)
        return self._lines.get()

    def _write(self, lines: Sequence[bytes]) -> None:
        written_bytes = _write_whole(self._raw, b"".join(lines))
        self._not_written += sum(end > written_bytes for end in accumulate(map(len, lines)))


def _write_whole(raw: RawWriter, data: bytes) -> int:
    """Returns the bytes written: fewer than all if there is no space, the reader of the pipe has ended or is not reading, or the file is
    closed.
    """
    rest = memoryview(data)
    with contextlib.suppress(OSError, ValueError):
        while rest and (count := raw.write(rest)):
            rest = rest[count:]
    return len(data) - len(rest)


class Logs:
    """The configured logging of the process; `close` restores the previous configuration.

    Attributes:
        is_json: Whether lines are JSON objects.
    """

    def __init__(self, settings: LogSettings, stream: TextIO) -> None:
        raw, is_terminal = _open(settings.file, stream)
        self._raw = raw
        self._is_terminal = is_terminal
        self.is_json = settings.format == "json" or (settings.format == "auto" and not is_terminal)
        self._sink = LogSink(raw, JsonFormatter() if self.is_json else TextFormatter())
        self._filter = _LevelFilter(settings)
        self._sink.addFilter(self._filter)
        self._before: list[tuple[logging.Logger, int, bool, list[logging.Handler]]] = []
        self._raise_before = logging.raiseExceptions

        root = logging.getLogger()
        self._remember(root)
        root.handlers = [*root.handlers, self._sink]
        stoker = logging.getLogger("stoker")
        self._remember(stoker)
        _set_levels(settings)
        for name in _FOREIGN:
            logger = logging.getLogger(name)
            self._remember(logger)
            logger.handlers = []
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
        logging.raiseExceptions = False
        logging.captureWarnings(True)

    @property
    def settings(self) -> LogSettings:
        """The current settings."""
        return self._filter.settings

    def change(self, settings: LogSettings) -> None:
        """Applies the levels and the format of `settings`; the destination stays."""
        self.is_json = settings.format == "json" or (settings.format == "auto" and not self._is_terminal)
        self._sink.setFormatter(JsonFormatter() if self.is_json else TextFormatter())
        self._filter.settings = settings
        _set_levels(settings)

    def dropped(self) -> int:
        """Lines that could not be written since the start."""
        return self._sink.dropped

    def shares_file_with(self, stream: TextIO) -> bool:
        """Whether lines go to the same file, pipe or terminal as `stream`, so that text printed there appears among them."""
        if not isinstance(self._raw, io.FileIO):
            return False
        try:
            ours, theirs = os.fstat(self._raw.fileno()), os.fstat(stream.fileno())
        except OSError:  # `stream` has no descriptor
            return False
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)

    @property
    def descriptor(self) -> int | None:
        """The descriptor that lines are written to; None: a stream without a descriptor."""
        return self._raw.fileno() if isinstance(self._raw, io.FileIO) else None

    def flush(self) -> None:
        """Waits, two seconds at most, until pending lines are written: before other output to the same place, or before an abrupt exit."""
        self._sink.flush()

    def close(self) -> None:
        """Writes pending lines, ends the writer, and restores the loggers. Idempotent."""
        logging.captureWarnings(False)
        logging.raiseExceptions = self._raise_before
        for logger, level, propagate, handlers in self._before:
            logger.setLevel(level)
            logger.propagate = propagate
            logger.handlers = handlers
        self._before = []
        self._sink.close()
        self._raw.close()

    def _remember(self, logger: logging.Logger) -> None:
        self._before.append((logger, logger.level, logger.propagate, logger.handlers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def configure(settings: LogSettings, *, stream: TextIO | None = None) -> Logs:
    """Routes every logger of the process, including those of uvicorn and grpc, into one sink.

    Args:
        settings: Levels, format and destination.
        stream: Used where `settings.file` is None; None: standard error.

    Raises:
        OSError: the log file cannot be opened for appending.
    """
    return Logs(settings, stream if stream is not None else sys.stderr)


class _LevelFilter(logging.Filter):
    """Each level is switched separately: an operator may enable warnings without errors, or the reverse."""

    def __init__(self, settings: LogSettings) -> None:
        super().__init__()
        self.settings = settings

    def filter(self, record: logging.LogRecord) -> bool:
        settings = self.settings
        if record.levelno >= logging.ERROR:
            return settings.error
        if record.levelno >= logging.WARNING:
            return settings.warning
        if record.levelno >= logging.INFO:
            return settings.info
        return settings.verbose > 0


def _set_levels(settings: LogSettings) -> None:
    logging.getLogger().setLevel(logging.DEBUG if settings.verbose >= 2 else logging.WARNING)
    logging.getLogger("stoker").setLevel(logging.DEBUG if settings.verbose >= 1 else logging.INFO)


def _open(file: Path | None, stream: TextIO) -> tuple[RawWriter, bool]:
    """An unbuffered binary file to write to, and whether it is a terminal.

    Unbuffered, because the interpreter aborts if a thread is stuck inside a buffered object at exit.
    """
    if file is not None:
        return file.open("ab", buffering=0), False
    try:
        return io.FileIO(stream.fileno(), "wb", closefd=False), stream.isatty()
    except (OSError, AttributeError, io.UnsupportedOperation):  # an in-memory stream, as in tests and notebooks
        return _TextWriter(stream), stream.isatty()


class _TextWriter:
    """A stream without a descriptor, with the interface of a raw file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: memoryview, /) -> int:
        self._stream.write(str(data, "utf-8", "replace"))
        return data.nbytes

    def close(self) -> None:
        """Leaves the stream open: the caller owns it."""
