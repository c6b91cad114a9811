"""Objects that have a key twice are refused, wherever they stand and however their keys are written."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import InvalidRequest
from stoker.server.codecs import strict_json
from stoker.server.codecs.long_arrays import parse_infer_json
from stoker.server.codecs.strict_json import RepeatedKey, check_keys, parse_bounded, parse_json, parse_tensor_json
from stoker.server.core.limits import Limits

LIMITS = Limits()
PARSERS = pytest.mark.parametrize("parse", [parse_json, parse_tensor_json, parse_bounded, parse_infer_json])
TEXT = 'a":{}[], \\\n'


@PARSERS
@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a" : 1,\n"a"\t:2}',
        b'{"inputs":[],"inputs":[{"name":"x"}]}',
        b'[[{"b":{"a":[],"c":"","a":{}}}]]',
        b'{"a":1,"\\u0061":2}',
        b'{"":1,"":2}',
        b'{"\\u003a":1,":":2}',
        b'{"a":"' + b"x" * 5000 + b'","b":[' + b"1," * 9000 + b'1],"a":1}',
        b'{"a":": :","b:":"\\":","a":3}',
        b'{"a":{"b":{},"c":{}},"a":1}',
        b'{"a":[1,{"n":1,"n":2}],"long":[' + b"1," * 1000 + b"1]}",
        b'{"long":[' + b"1," * 1000 + b'{"n":1,"n":2}]}',
        b'{"data":[' + b"1," * 40_000 + b'1],"data":[1]}',
        b'{"inputs":[{"data":[' + b"1," * 40_000 + b'1],"data":[' + b"2," * 40_000 + b"2]}]}",
    ],
    ids=range(14),
)
def test_repeated_key_is_refused(parse: Any, text: bytes):
    with pytest.raises(InvalidRequest, match="an object has the same key more than once"):
        parse(text, LIMITS)


@PARSERS
@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "a:b",
        1,
        {"a": {"a": {"a": []}}},
        [{"a": 1}, {"a": 1}],
        {"text": 'note: "quoted": {x: [y]}', "colon :": ' ":" ', "": ":"},
        {"inputs": [{"name": "x", "data": ['{"a": 1}', '{"a": 1, "a": 2}'] * 100}]},
        {"instances": [{"x": [1, 2], "y": {"b64": "aGk="}} for _ in range(300)]},
    ],
    ids=range(9),
)
@pytest.mark.parametrize("separators", [None, (",", ":"), (" , ", "\n:\t")], ids=["usual", "dense", "wide"])
def test_unrepeated_keys_are_accepted(parse: Any, value: Any, separators: tuple[str, str] | None):
    assert parse(json.dumps(value, separators=separators).encode(), LIMITS) == value


@PARSERS
@pytest.mark.parametrize("filler", [b"", b"1," * 9000], ids=["short", "long"])
@pytest.mark.parametrize(
    ("members", "is_repeated"),
    [
        (b'"a\\u003a":1,"b":"\\u003A:"', False),
        (b'"a":"\\\\u003a","b":"\\\\\\u003a"', False),
        (b'"a":"\\u003b\\u003f","b:":1', False),
        (b'"a":"\\u003a","b":1,"b":2', True),
        (b'"a":"\\\\u003a","b":1,"b":2', True),
        (b'"a:":1,"a\\u003a":2', True),
    ],
    ids=range(6),
)
def test_escaped_colon_neither_hides_nor_feigns_a_repeated_key(parse: Any, members: bytes, filler: bytes, is_repeated: bool):
    text = b'{%b,"long":[%b1]}' % (members, filler)
    if is_repeated:
        with pytest.raises(InvalidRequest, match="the same key more than once"):
            parse(text, LIMITS)
    else:
        assert parse(text, LIMITS) == json.loads(text)


class Searched(bytes):
    """Counts the bytes that are searched."""

    searched = 0

    def count(self, *arguments: Any) -> int:
        self.searched += len(self)
        return super().count(*arguments)

    def replace(self, *arguments: Any) -> "Searched":
        self.searched += len(self)
        return Searched(super().replace(*arguments))

    def __contains__(self, part: Any) -> bool:
        self.searched += len(self)
        return super().__contains__(part)


@pytest.mark.parametrize("fill", [b":", b"x:", b'\\":', b"1,"], ids=["colons", "words", "quotes", "numbers"])
def test_long_string_is_searched_a_fixed_number_of_times(fill: bytes, monkeypatch: pytest.MonkeyPatch):
    """A pattern that skips strings takes ten times as long as a search, and holds the interpreter lock."""
    for name in [name for name, each in vars(strict_json).items() if isinstance(each, re.Pattern)]:
        monkeypatch.setattr(strict_json, name, None)
    for size in (10_000, 100_000):
        for members, is_repeated in ((b'"b":1', False), (b'"b":1,"b":1', True)):
            text = Searched(b'{"a":"%b",%b}' % (fill * size, members))
            value = json.loads(text)
            if is_repeated:
                with pytest.raises(RepeatedKey):
                    check_keys(text, value)
            else:
                check_keys(text, value)
            assert text.searched <= 5 * len(text)


def test_repeated_keys_are_found_beside_nan_and_infinity():
    assert parse_tensor_json(b'{"NaN":NaN,"null":1,"Infinity":-Infinity}', LIMITS)["null"] == 1
    with pytest.raises(InvalidRequest, match="the same key more than once"):
        parse_tensor_json(b'{"a":NaN,"a":1}', LIMITS)


def pairs() -> st.SearchStrategy[Any]:
    """Values whose objects are lists of members, so that keys may repeat."""
    leaf = st.none() | st.integers(0, 3) | st.text(alphabet=TEXT, max_size=4)
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: ("list", items))
            | st.lists(st.tuples(st.text(alphabet=TEXT, max_size=1), inner), max_size=3).map(lambda members: ("object", members))
        ),
        max_leaves=12,
    )


def written(value: Any) -> str:
    if not isinstance(value, tuple):
        return json.dumps(value)
    kind, items = value
    if kind == "list":
        return f"[{','.join(map(written, items))}]"
    return "{" + ", ".join(f"{json.dumps(key)}: {written(inner)}" for key, inner in items) + "}"


def repeats(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    kind, items = value
    if kind == "list":
        return any(map(repeats, items))
    return len({key for key, _ in items}) < len(items) or any(repeats(inner) for _, inner in items)


@given(pairs())
def test_exactly_the_repeated_keys_are_refused(value: Any):
    text = written(value).encode()
    if repeats(value):
        with pytest.raises(InvalidRequest, match="the same key more than once"):
            parse_json(text, LIMITS)
    else:
        assert parse_json(text, LIMITS) == json.loads(text)
