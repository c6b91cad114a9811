"""Protocol buffer text format to a tree of named values with lines, and the tree to a message.

The grammar is that of the reference parser: `name: value`, `name { ... }` and `name < ... >` with an optional colon, lists in `[ ]`,
optional `,` or `;` after a field, `#` comments, adjacent strings joined. Extensions and `Any` are left out: no configuration has them.
The tree, unlike a parsed message, keeps the lines for semantic errors and allows more than one error to be reported.
"""

import enum
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from stoker.server.config.report import MAX_DEPTH, MAX_TEXT_BYTES, ConfigError, Problem, Report, allowed_names, belonging, map_path


class ScalarKind(enum.Enum):
    """The notation of a value."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that is not a block: `text` as written; for strings, the unescaped content."""

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
        ConfigError: not text format, too long, or nested too deeply; gives the line and the field being read.
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
        position = self._peek.line if line is None else line
        raise ConfigError([Problem.of(self._source, position, ".".join(self._names) or "(top level)", message)])


def _shown(token: _Token) -> str:
    return "the end of the file" if token.text == _END else f"'{token.text[:40]}'"


_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)\Z")
_JSON_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0+)?\Z")
_FLOAT = re.compile(r"-?(?:inf(?:inity)?|nan|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:e[+-]?[0-9]++)?f?)\Z", re.IGNORECASE)
_TRUE = frozenset({"true", "True", "t", "1"})
_FALSE = frozenset({"false", "False", "f", "0"})
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
#: The largest number of digits of an integer field; bounds the cost of `int()`.
_MAX_DIGITS = 24
#: The largest number of characters of a floating-point number: more than any double needs.
_MAX_FLOAT_LENGTH = 400


class _Unreadable(Exception):
    """A value has the wrong type; the text states what was expected."""


class Binder:
    """Fills messages from trees. Confined to: one reading of one configuration."""

    def __init__(
        self,
        report: Report,
        lines: MutableMapping[str, int | None],
        *,
        is_json: bool,
        enum_bound: int,
        parents: Mapping[str, tuple[str, ...]],
        rejections: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Starts empty.

        Args:
            report: Receives the problems.
            lines: Receives the line of every written field, by path.
            is_json: JSON's rules instead of text format's: maps are objects, repeated fields are lists, names may be camelCase,
                numbers may be strings.
            enum_bound: Enum values from this number on may not be written as numbers.
            parents: For each field name of the schema the blocks that have it, for the hint about a misplaced field.
            rejections: By name, why a field of other servers is not part of the schema.
        """
        self._report = report
        self._lines = lines
        self._is_json = is_json
        self._enum_bound = enum_bound
        self._parents = parents
        self._rejections = rejections
        #: Paths of enum fields that were written as numbers.
        self.numeric_enums: list[str] = []

    def fill(self, block: Block, message: Message, path: str = "") -> None:
        """Sets the fields of `message` (found at `path`) that `block` has."""
        for entry in block.entries:
            field = self._field(entry, message, path)
            if field is None:
                continue
            at = _join(path, field.name)
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._fill_map(entry, field.message_type, getattr(message, field.name), at)
            elif field.is_repeated:
                self._fill_repeated(entry, field, message, at)
            else:
                self._fill_singular(entry, field, message, at)

    def _field(self, entry: Entry, message: Message, path: str) -> FieldDescriptor | None:
        descriptor: Descriptor = message.DESCRIPTOR  # type: ignore[assignment] # typed as either implementation's class
        # Names of the schema are ASCII, and protobuf cannot look up a name without a UTF-8 form.
        field = descriptor.fields_by_name.get(entry.name) if entry.name.isascii() else None
        if field is None and self._is_json and entry.name.isascii():
            field = descriptor.fields_by_camelcase_name.get(entry.name)
        if field is None:
            if entry.name in self._rejections:
                self._report.error(_join(path, entry.name), self._rejections[entry.name], line=entry.line)
                return None
            parents = self._parents.get(entry.name)
            names = [field.name for field in descriptor.fields]
            hint = f" here{belonging(parents)}" if parents else allowed_names(entry.name, names)
            self._report.error(_join(path, entry.name), f"unknown field{hint}", line=entry.line)
        return field

    def _fill_singular(self, entry: Entry, field: FieldDescriptor, message: Message, at: str) -> None:
        if at in self._lines:
            self._report.error(at, f"written twice{_first(self._lines[at])}", line=entry.line)
            return
        if entry.is_list:
            self._report.error(at, "takes one value, not a list", line=entry.line)
            return
        oneof = field.containing_oneof
        other = message.WhichOneof(oneof.name) if oneof is not None else None
        if oneof is not None and other is not None:
            names = ", ".join(member.name for member in oneof.fields)
            there = self._lines.get(_join(at.rpartition(".")[0], other))
            self._report.error(at, f"contradicts '{other}'{_first(there)}: at most one of {names} may be written", line=entry.line)
            return
        self._lines[at] = entry.line
        value = entry.values[0]
        if field.message_type is not None:
            if isinstance(value, Block):
                getattr(message, field.name).SetInParent()
                self.fill(value, getattr(message, field.name), at)
            else:
                self._report.error(at, f"takes a block {{ ... }}, not '{value.text[:40]}'", line=value.line)
            return
        self._read(value, field, at, lambda read: setattr(message, field.name, read))

    def _fill_repeated(self, entry: Entry, field: FieldDescriptor, message: Message, at: str) -> None:
        if self._is_json and not entry.is_list:
            self._report.error(at, "takes a list", line=entry.line)
            return
        if entry.is_list and field.message_type is None and at in self._lines:
            # The format would join the two lists, which the author hardly meant.
            self._report.error(at, f"written twice{_first(self._lines[at])}", line=entry.line)
            return
        self._lines.setdefault(at, entry.line)
        container: Any = getattr(message, field.name)
        for value in entry.values:
            here = f"{at}[{len(container)}]"
            self._lines[here] = value.line
            if field.message_type is None:
                self._read(value, field, here, container.append)
            elif isinstance(value, Block):
                self.fill(value, container.add(), here)
            else:
                self._report.error(here, f"takes a block {{ ... }}, not '{value.text[:40]}'", line=value.line)

    def _fill_map(self, entry: Entry, kind: Descriptor, container: Any, at: str) -> None:
        self._lines.setdefault(at, entry.line)
        for value in entry.values:
            if self._is_json and entry.is_list:
                self._report.error(at, "takes an object, not a list")
            elif not isinstance(value, Block):
                self._report.error(at, f"takes a block {{ ... }}, not '{value.text[:40]}'", line=value.line)
            elif self._is_json:
                for member in value.entries:
                    key = Scalar(ScalarKind.STRING, member.name, member.line)
                    self._add_to_map(key, member, kind, container, at)
            else:
                parts = self._map_parts(value, at)
                if parts is not None:
                    self._add_to_map(*parts, kind, container, at)

    def _map_parts(self, block: Block, at: str) -> tuple[Value, Entry | None] | None:
        """The key and the value entry of `{ key: ... value: ... }`; None, after reporting the error, if it has another form."""
        parts: dict[str, Entry] = {}
        for entry in block.entries:
            if entry.name not in ("key", "value"):
                self._report.error(_join(at, entry.name), f"unknown field{allowed_names(entry.name, ('key', 'value'))}", line=entry.line)
                return None
            if entry.name in parts or entry.is_list:
                self._report.error(_join(at, entry.name), "takes one value, once", line=entry.line)
                return None
            parts[entry.name] = entry
        if "key" not in parts:
            self._report.error(at, "an entry without 'key'", line=block.line)
            return None
        return parts["key"].values[0], parts.get("value")

    def _add_to_map(self, key: Value, entry: Entry | None, kind: Descriptor, container: Any, at: str) -> None:
        key_field, value_field = kind.fields_by_name["key"], kind.fields_by_name["value"]
        keys: list[Any] = []
        self._read(key, key_field, f"{at}.key", keys.append)
        if not keys:
            return
        here = map_path(at, keys[0])
        if here in self._lines:
            self._report.error(here, f"written twice{_first(self._lines[here])}", line=key.line)
            return
        self._lines[here] = key.line
        value = entry.values[0] if entry is not None and not entry.is_list else None
        if entry is not None and value is None:
            self._report.error(here, "takes one value, not a list", line=entry.line)
        elif value_field.message_type is None:
            if value is None:
                container[keys[0]] = value_field.default_value
            else:
                self._read(value, value_field, here, lambda read: container.__setitem__(keys[0], read))
        elif isinstance(value, Scalar):
            self._report.error(here, f"takes a block {{ ... }}, not '{value.text[:40]}'", line=value.line)
        else:
            self.fill(value or Block((), key.line), container[keys[0]], here)

    def _read(self, value: Value, field: FieldDescriptor, at: str, store: Callable[[Any], object]) -> None:
        try:
            if isinstance(value, Block):
                raise _Unreadable("takes a single value, not a block")
            if field.enum_type is not None:
                store(self._enum(value, field.enum_type, at))
            else:
                store(_scalar(value, field, is_json=self._is_json))
        except _Unreadable as error:
            self._report.error(at, str(error), line=value.line)

    def _enum(self, value: Scalar, kinds: EnumDescriptor, at: str) -> int:
        names = [name for name, kind in kinds.values_by_name.items() if kind.number < self._enum_bound and not name.endswith("_INVALID")]
        if value.kind is ScalarKind.NUMBER:
            number = _integer(value, *_RANGES[FieldDescriptor.CPPTYPE_INT32], is_json=self._is_json)
            if number not in kinds.values_by_number or number >= self._enum_bound:
                raise _Unreadable(f"no value has the number {number}; allowed: {', '.join(names)}")
            self.numeric_enums.append(at)
            return number
        if value.kind is ScalarKind.STRING and not self._is_json:
            raise _Unreadable(f"takes a name without quotes, not {_quoted(value)}")
        if not value.text.isascii() or value.text not in kinds.values_by_name:
            # Two forms may share an enum and differ by prefix: suggest names with the same prefix.
            prefix = value.text.partition("_")[0]
            others = [name for name, kind in kinds.values_by_name.items() if kind.number >= self._enum_bound and name.startswith(prefix)]
            raise _Unreadable(f"unknown value {_quoted(value)}{allowed_names(value.text[:40], others or names)}")
        return kinds.values_by_name[value.text].number


def _scalar(value: Scalar, field: FieldDescriptor, *, is_json: bool) -> int | float | bool | str:
    is_text = value.kind is ScalarKind.STRING
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if not is_text:
            raise _Unreadable(f"takes a string in quotes, not {value.text[:40]}")
        if not value.text.isprintable() and any("\ud800" <= character <= "\udfff" for character in value.text):
            raise _Unreadable("takes valid Unicode text")
        return value.text
    if field.cpp_type in _RANGES:
        return _integer(value, *_RANGES[field.cpp_type], is_json=is_json)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        if is_text or value.text not in _TRUE | _FALSE or (is_json and value.kind is not ScalarKind.WORD):
            raise _Unreadable(f"takes true or false, not {_quoted(value)}")
        return value.text in _TRUE
    if (is_text and not is_json) or len(value.text) > _MAX_FLOAT_LENGTH or not _FLOAT.match(value.text):
        raise _Unreadable(f"takes a number, not {_quoted(value)}")
    return float(value.text.rstrip("fF") if value.text[-1:] in "fF" and "inf" not in value.text.lower() else value.text)


def _integer(value: Scalar, low: int, high: int, *, is_json: bool) -> int:
    if is_json:
        match = _JSON_INTEGER.match(value.text)
        digits, radix = (match[1], 10) if match else ("", 10)
    else:
        digits = value.text if _INTEGER.match(value.text) and value.kind is ScalarKind.NUMBER else ""
        body = digits.lstrip("-")
        radix = 16 if body[:2] in ("0x", "0X") else 8 if body.startswith("0") else 10
    number = int(digits, radix) if digits and len(digits) <= _MAX_DIGITS else None
    if number is None or not low <= number <= high:
        raise _Unreadable(f"takes an integer from {low} to {high}, not {_quoted(value)}")
    return number


def _quoted(value: Scalar) -> str:
    return f'"{value.text[:40]}"' if value.kind is ScalarKind.STRING else value.text[:40]


def _first(line: int | None) -> str:
    return "" if line is None else f" (first on line {line})"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
