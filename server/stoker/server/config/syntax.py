"""Protocol buffer text format to a tree of named values, each with its line. Knows no field and no message.

The grammar is that of the reference parser: `name: value`, `name { ... }` and `name < ... >` with an optional colon, lists in `[ ]`,
optional `,` or `;` after a field, `#` comments, adjacent strings joined. Extensions and `Any` are left out: no configuration has them.
A tree of our own, instead of the parsed message alone, is what lets semantic errors name a line, and more than the first error be reported.
"""

import enum
import re
from dataclasses import dataclass
from typing import NoReturn

from stoker.server.config.errors import ConfigError, Problem
from stoker.server.config.limits import MAX_DEPTH, MAX_TEXT_BYTES


class ScalarKind(enum.Enum):
    """How a value was written."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that is not a block: `text` as written, for strings what the quotes hold after unescaping."""

    kind: ScalarKind
    text: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Block:
    """The fields between two braces, or of the whole text, in order."""

    entries: tuple["Entry", ...]
    line: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One field as written: `name: value`, or `name: [values]` (`is_list`)."""

    name: str
    values: tuple["Value", ...]
    is_list: bool
    line: int | None


Value = Scalar | Block

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\f\v]+|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_][\w+-]*)
      | (?P<number>(?:[0-9+-]|\.[0-9])[\w.+-]*)
      | (?P<mark>[{}<>\[\]:;,])""",
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9a-fA-F]{1,2})|u(?P<u4>[0-9a-fA-F]{4})|U(?P<u8>[0-9a-fA-F]{8})|(?P<one>.))", re.DOTALL
)
_SINGLE = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_CLOSERS = {"{": "}", "<": ">"}
_END = "end of file"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def parse_tree(text: str, *, source: str) -> Block:
    """The tree of `text`.

    Raises:
        ConfigError: not text format, too long, or nested too deeply; names the line and the field being read.
    """
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise ConfigError([Problem.of(source, 1, "(file)", f"longer than {MAX_TEXT_BYTES} bytes")])
    return _Parser(text.removeprefix("\ufeff"), source).whole()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._names: list[str] = []
        self._at = 0
        self._tokens = self._tokenize(text)

    def whole(self) -> Block:
        entries = self._entries(_END)
        return Block(entries, 1)

    def _tokenize(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        line, at = 1, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                self._names = [token.text for token in tokens if token.kind == "word"][-1:]
                wrong = "a string that is not closed on its line" if text[at] in "\"'" else f"unexpected character {text[at]!r}"
                self._fail(wrong, line)
            kind = str(match.lastgroup)
            if kind == "newline":
                line += 1
            elif kind != "blank":
                tokens.append(_Token(kind, match.group(), line))
            at = match.end()
        tokens.append(_Token("mark", _END, line))
        return tokens

    def _entries(self, closer: str) -> tuple[Entry, ...]:
        if len(self._names) > MAX_DEPTH:
            self._fail(f"blocks are nested deeper than {MAX_DEPTH}")
        entries: list[Entry] = []
        while self._peek.text != closer or self._peek.kind != "mark":
            entries.append(self._entry(closer))
        self._at += 1
        return tuple(entries)

    def _entry(self, closer: str) -> Entry:
        name = self._next()
        if name.kind != "word":
            alternative = "" if closer == _END else f" or '{closer}'"
            self._fail(f"expected a field name{alternative}, not {_shown(name)}", name.line)
        self._names.append(name.text)
        has_colon = self._accept(":")
        if self._accept("["):
            values = self._list(has_colon=has_colon)
            entry = Entry(name.text, values, is_list=True, line=name.line)
        else:
            entry = Entry(name.text, (self._value(has_colon=has_colon),), is_list=False, line=name.line)
        self._names.pop()
        if not self._accept(","):
            self._accept(";")
        return entry

    def _list(self, *, has_colon: bool) -> tuple[Value, ...]:
        values: list[Value] = []
        if self._accept("]"):
            return ()
        while True:
            values.append(self._value(has_colon=has_colon))
            if self._accept("]"):
                return tuple(values)
            if not self._accept(","):
                self._fail(f"expected ',' or ']' in the list, not {_shown(self._peek)}")

    def _value(self, *, has_colon: bool) -> Value:
        token = self._peek
        if token.kind == "mark" and token.text in _CLOSERS:
            self._at += 1
            return Block(self._entries(_CLOSERS[token.text]), token.line)
        if not has_colon:
            self._fail(f"expected ':' or '{{' after '{self._names[-1]}', not {_shown(token)}")
        if token.kind == "mark":
            self._fail(f"expected a value, not {_shown(token)}")
        if token.kind != "string":
            self._at += 1
            return Scalar(ScalarKind(token.kind), token.text, token.line)
        content = bytearray()
        while self._peek.kind == "string":
            content += self._unescaped(self._next())
        try:
            return Scalar(ScalarKind.STRING, content.decode(), token.line)
        except UnicodeDecodeError:
            self._fail("the string is not valid UTF-8", token.line)

    def _unescaped(self, token: _Token) -> bytes:
        content = bytearray()
        body, at = token.text[1:-1], 0
        for match in _ESCAPE.finditer(body):
            content += body[at : match.start()].encode("utf-8", "surrogatepass")
            at = match.end()
            if (octal := match["octal"]) is not None:
                content.append(int(octal, 8) & 255)
            elif (pair := match["hex"]) is not None:
                content.append(int(pair, 16))
            elif (point := match["u4"] or match["u8"]) is not None and int(point, 16) < 0x110000:
                content += chr(int(point, 16)).encode("utf-8", "surrogatepass")
            elif match["one"] in _SINGLE:
                content.append(_SINGLE[match["one"]])
            else:
                self._fail(f"'{match.group()}' is not an escape sequence", token.line)
        return bytes(content + body[at:].encode("utf-8", "surrogatepass"))

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _accept(self, mark: str) -> bool:
        if self._peek.kind == "mark" and self._peek.text == mark:
            self._at += 1
            return True
        return False

    def _fail(self, message: str, line: int | None = None) -> NoReturn:
        place = self._peek.line if line is None else line
        raise ConfigError([Problem.of(self._source, place, ".".join(self._names) or "(top level)", message)])


def _shown(token: _Token) -> str:
    return "the end of the file" if token.text == _END else f"'{token.text[:40]}'"
