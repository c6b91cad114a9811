"""Turns a log record into one line that nobody can forge.

Whatever a client sent (a model name, a request id, a header) may end up in a record. Control characters, line and paragraph
separators and bidirectional overrides are therefore shown as escapes, and every field is cut. Two forms: `JsonFormatter` for machines,
one object a line; `TextFormatter` for people at a terminal.
"""

import json
import logging
import re
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime

FIELD_LIMIT = 256
#: The message is our own template with values put in; it may be longer than a single value, but not endless.
MESSAGE_LIMIT = 2048
EXCEPTION_LIMIT = 16_384

# C0, DEL, C1, line and paragraph separators, everything that changes writing direction, the byte order mark, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_NEEDS_QUOTES = re.compile(r'[\s"=]|^$')
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# What the logging module itself puts on a record; everything else came by `extra`.
_OWN_ATTRIBUTES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"})
# Names of our own fields: an extra of that name must not replace them.
_RESERVED = frozenset({"ts", "level", "logger", "message", "exception"})


def escaped(text: str, limit: int = FIELD_LIMIT) -> str:
    """`text` on one line: unsafe characters shown as backslash escapes, at most `limit` characters (what was cut ends in `...`)."""
    # Cut first: a megabyte from a client is not worth escaping. Escapes may lengthen what is left, hence the second cut.
    clean = _UNSAFE.sub(_escape, text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


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
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """`I 2026-01-31T12:00:00.123Z stoker.lifecycle: message  key=value ...`; an exception follows, each line marked with a bar.

    For people: a value that the message already says is not repeated, numbers have three decimals, and what is not known is a dash.
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
        plain = isinstance(value, bool | int | float) or value is None
        yield (f"{name}_" if name in _RESERVED else name), value if plain else escaped(str(value))


def _is_said(value: object, message: str) -> bool:
    """Whether `value` stands in `message` as a word of its own: version 1 is not said by "took 10 s"."""
    text = str(value)
    if isinstance(value, bool) or value is None or not text:
        return False
    return re.search(rf"(?<![\w.]){re.escape(text)}(?![\w]|\.\d)", message) is not None


def _exception_lines(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[1] is None:
        return []
    text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
    # Of an overlong one the end is kept: it names the error.
    return [escaped(line, MESSAGE_LIMIT) for line in text[-EXCEPTION_LIMIT:].split("\n")]


def _quoted(value: object) -> str:
    text = "-" if value is None else str(value)
    return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text
