"""A ModelConfig as JSON, as an explicit load may bring it along, to `ParsedConfig`: the same tree, schema and checks as config.pbtxt.

proto3's JSON mapping: proto field names or their camelCase, maps as objects, 64-bit integers as numbers or strings, null for "not written".
"""

import json
import re
from typing import Any, NoReturn

from stoker.server.config.errors import ConfigError, Problem
from stoker.server.config.limits import MAX_DEPTH, MAX_TEXT_BYTES
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.pbtxt import read_tree
from stoker.server.config.syntax import Block, Entry, Scalar, ScalarKind, Value

#: A string that is not closed is one to the end: looking for its end from every quote within it would take quadratic time.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


class _Number(str):
    """Digits as written: never converted by the JSON parser, so that no hostile number costs anything."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """An object's members, kept apart from arrays; a dict would hide duplicates."""

    __slots__ = ()


def parse_config_json(text: str, *, model_name: str) -> ParsedConfig:
    """Reads the `config` parameter of a load.

    Raises:
        ConfigError: not JSON, too large, too deep, or wrong as `parse_pbtxt` says; its problems have no line.
    """
    source = f"{model_name} (config of the load request)"

    def fail(message: str) -> NoReturn:
        raise ConfigError([Problem.of(source, None, "(top level)", message)])

    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        fail(f"longer than {MAX_TEXT_BYTES} bytes")
    if _depth(text) > MAX_DEPTH:
        fail(f"nested deeper than {MAX_DEPTH}")
    try:
        value = json.loads(text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except json.JSONDecodeError as error:
        fail(f"not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})")
    if not isinstance(value, _Object):
        fail("takes a JSON object")
    return read_tree(_block(value), source=source, model_name=model_name, first_line=None)


def _depth(text: str) -> int:
    deepest = depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match.group() in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match.group() in "]}":
            depth -= 1
    return deepest


def _block(members: _Object) -> Block:
    return Block(tuple(_entry(name, value) for name, value in members if value is not None), None)


def _entry(name: str, value: Any) -> Entry:
    if isinstance(value, list) and not isinstance(value, _Object):
        return Entry(name, tuple(_value(item) for item in value), is_list=True, line=None)
    return Entry(name, (_value(value),), is_list=False, line=None)


def _value(value: Any) -> Value:
    if isinstance(value, _Object):
        return _block(value)
    if isinstance(value, bool):
        return Scalar(ScalarKind.WORD, "true" if value else "false", None)
    if isinstance(value, _Number):
        return Scalar(ScalarKind.NUMBER, str(value), None)
    if isinstance(value, str):
        return Scalar(ScalarKind.STRING, value, None)
    # null or a list within a list: no field takes either, and the binder says so.
    return Scalar(ScalarKind.WORD, "null" if value is None else "a list within a list", None)
