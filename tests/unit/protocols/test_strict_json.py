import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import InvalidRequest, TooLarge
from stoker.server.codecs.strict_json import memory_cost, parse_bounded, parse_json, parse_tensor_json
from stoker.server.core.limits import Limits

LIMITS = Limits()


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(alphabet='a[]{}"\\,ü'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='[]{}"\\', max_size=3), inner, max_size=3),
    max_leaves=30,
)


@given(NESTED, st.integers(1, 8))
def test_depth_is_measured_exactly_whatever_strings_contain(value: Any, most: int):
    text = json.dumps(value).encode()
    if depth(value) <= most:
        assert parse_json(text, Limits(json_depth=most)) == value
    else:
        with pytest.raises(InvalidRequest, match=f"more than {most} levels"):
            parse_json(text, Limits(json_depth=most))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_hundred_levels_pass_and_one_more_is_refused(opening: str):
    closing = "]" if opening == "[" else "}"
    parse_json((opening * 99 + "[]" + closing * 99).encode(), LIMITS)
    with pytest.raises(InvalidRequest, match="nested more than 100 levels"):
        parse_json((opening * 100 + "[]" + closing * 100).encode(), LIMITS)


def test_deep_brackets_are_refused_without_parsing():
    with pytest.raises(InvalidRequest, match="nested more than 100 levels"):
        parse_json(b"[" * 250_000, LIMITS)


def test_unterminated_string_of_quotes_takes_linear_time():
    with pytest.raises(InvalidRequest, match="brackets do not match"):
        parse_json(b"[" * 50 + b"[]," * 60 + b'"' + b'\\"' * 500_000, LIMITS)


@pytest.mark.parametrize(("text", "what"), [(b"{},", "objects"), (b"[],", "arrays"), (b"0,", "values")])
def test_memory_amplifiers_are_refused_by_counting(text: bytes, what: str):
    limits = Limits(json_objects=1000, json_arrays=1000, json_values=5000 if what != "values" else 1000)
    with pytest.raises(TooLarge, match=f"{what}, more than the 1000"):
        memory_cost(b"[" + text * 1001 + b"0]", limits)


def test_text_above_the_limit_is_refused():
    with pytest.raises(TooLarge, match="exceeds the limit of 10 bytes"):
        parse_bounded(b"[1,2,3,4,5,6]", Limits(json_bytes=10))


def test_structure_costs_more_than_its_text():
    flat = b"[" + b"0," * 1000 + b"0]"
    objects = b"[" + b"{}," * 1000 + b"0]"
    assert memory_cost(objects, LIMITS) > memory_cost(flat, LIMITS) > len(flat)


@pytest.mark.parametrize("text", [b"NaN", b"[Infinity]", b"[1e999]", b'"\\ud800"', b'"\xff"', b"", b"[1,]", b"{'a':1}", b"[1] x"])
def test_invalid_json_is_refused(text: bytes):
    with pytest.raises(InvalidRequest, match="failed to parse the request JSON"):
        parse_json(text, LIMITS)


def test_tensors_may_contain_non_finite_numbers():
    text = '{"NaN": [NaN, -Infinity, Infinity, 1, 18446744073709551615, 18446744073709551616], "s": "é NaN \\" Infinity"}'.encode()
    parsed = parse_tensor_json(text, LIMITS)
    assert repr(parsed["NaN"]) == "[nan, -inf, inf, 1, 18446744073709551615, 1.8446744073709552e+19]"
    assert parsed["s"] == 'é NaN " Infinity'


@pytest.mark.parametrize(
    "text",
    [
        b"[NaN",
        b"[NaN,]",
        b"[nan]",
        b"[1NaN]",
        b"[NaNNaN]",
        b"[+Infinity]",
        b"{NaN:1}",
        b'[NaN,"\\ud800"]',
        b'[NaN,"\xff"]',
        b"[NaN,1e999]",
        b"[NaN,1" + b"0" * 400 + b"]",
        b'"NaN',
        b'["\\NaN"]',
        b'[NaN,"\\Infinity"]',
        b"[NaN," * 200 + b"1" + b"]" * 200,
    ],
)
def test_other_fields_beside_non_finite_tensors_are_strict(text: bytes):
    with pytest.raises(InvalidRequest):
        parse_tensor_json(text, LIMITS)


def test_long_text_with_non_finite_words_is_refused_unless_it_is_json_without_them():
    assert parse_tensor_json(b'["NaN NaN"]', Limits(json_special_bytes=5)) == ["NaN NaN"]
    with pytest.raises(TooLarge, match="may stand in JSON of up to 5 bytes"):
        parse_tensor_json(b"[1,NaN]", Limits(json_special_bytes=5))
