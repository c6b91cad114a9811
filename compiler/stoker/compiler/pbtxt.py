"""Protobuf's text format, as far as config.pbtxt needs it: a printer, and a reader that knows no schema.

A message is a dictionary; a field that is written several times, or as a list, has a list. The compiler does not share the server's
parser: the two are installed apart, and this one only compares.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.compiler.errors import CompileError

_TOKEN = re.compile(
    r"""[\s,;]+|\#[^\n]*|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<mark>[{}\[\]:<>])|(?P<word>[^\s,;:{}\[\]<>"'\#]+)"""
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class Word(str):
    """An identifier such as an enum's value, printed without quotes."""

    __slots__ = ()


def print_message(message: Mapping[str, Any], indent: int = 0) -> str:
    """The text of a message: one field a line, nested messages indented by two, lists of scalars in brackets."""
    pad = "  " * indent
    lines: list[str] = []
    for name, value in message.items():
        if isinstance(value, Mapping) and not value:
            lines.append(f"{pad}{name} {{ }}\n")
        elif isinstance(value, Mapping):
            lines.append(f"{pad}{name} {{\n{print_message(value, indent + 1)}{pad}}}\n")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines.append(_printed_list(name, value, indent))
        else:
            lines.append(f"{pad}{name}: {_scalar(value)}\n")
    return "".join(lines)


def _printed_list(name: str, values: Sequence[Any], indent: int) -> str:
    pad = "  " * indent
    if values and isinstance(values[0], Mapping):
        inner = f",\n{pad}  ".join("{ " + " ".join(line.strip() for line in print_message(each).splitlines()) + " }" for each in values)
        return f"{pad}{name} [\n{pad}  {inner}\n{pad}]\n"
    return f"{pad}{name}: [{', '.join(_scalar(each) for each in values)}]\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word | int | float):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def read_message(text: str, source: str) -> dict[str, list[Any]]:
    """Field names and all their values, in order; scalars as text without quotes.

    Raises:
        CompileError: the text is no message; the error names `source` and the line.
    """
    reader = _Reader(text, source)
    return reader.message("")


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            line = text.count("\n", 0, at) + 1
            if match is None:
                raise CompileError(f"{source}:{line}: cannot read {text[at : at + 20]!r}")
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match.group(), line))
            at = match.end()
        self._tokens.append(("end", "", text.count("\n") + 1))
        self._at = 0

    def message(self, closer: str) -> dict[str, list[Any]]:
        fields: dict[str, list[Any]] = {}
        while True:
            kind, text, line = self._take()
            if text == closer and kind in ("mark", "end"):
                return fields
            if kind != "word":
                raise CompileError(f"{self._source}:{line}: expected the name of a field, got '{text or 'the end'}'")
            if self._peek() == ("mark", ":"):
                self._take()
            fields.setdefault(text, []).extend(self._values())

    def _values(self) -> list[Any]:
        kind, text, line = self._take()
        if kind == "mark" and text == "[":
            values: list[Any] = []
            while self._peek() != ("mark", "]"):
                values += self._values()
            self._take()
            return values
        if kind == "mark" and text in "{<":
            return [self.message("}" if text == "{" else ">")]
        if kind == "word":
            return [text]
        if kind != "string":
            raise CompileError(f"{self._source}:{line}: expected a value, got '{text or 'the end'}'")
        joined = _unquoted(text)
        while self._peek()[0] == "string":
            joined += _unquoted(self._take()[1])
        return [joined]

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at][:2]

    def _take(self) -> tuple[str, str, int]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match.group(1), match.group(1)), text[1:-1])
