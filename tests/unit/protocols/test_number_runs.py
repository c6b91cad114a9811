from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import InvalidRequest
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.long_arrays import _run_end, parse_infer_json
from stoker.server.codecs.strict_json import parse_json
from stoker.server.codecs.validation import SignatureChecks
from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve import http_codec
from tests.fakes.fake_engine import FakeEngine, echo

LIMITS = Limits()
MANY = 100_000


def parse(*data: bytes, tail: bytes = b"") -> Any:
    return parse_infer_json(b'{"inputs":[' + b",".join(b'{"name":"I","data" : ' + d + b"}" for d in data) + b"]" + tail + b"}", LIMITS)


def text(values: Any) -> bytes:
    return orjson.dumps(values)


def test_long_runs_of_numbers_become_arrays():
    ints, floats = list(range(MANY)), [i / 8 for i in range(MANY)]
    first, second, third = (tensor["data"] for tensor in parse(text(ints), text(floats), b"[1,2]")["inputs"])
    assert first.dtype == np.int64
    assert first.tolist() == ints
    assert second.dtype == np.float64
    assert second.tolist() == floats
    assert third == [1, 2]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.booleans(), st.sampled_from(["", " ", "\n\t "]))
def test_nesting_and_blanks_are_accepted(dims: list[int], floats: bool, blank: str):
    row = int(np.prod(dims))
    array = np.arange(20_000 // row * row).reshape(-1, *dims).astype(np.float64 if floats else np.int64)
    written = text(array.tolist()).replace(b",", f"{blank},{blank}".encode()).replace(b"]", f"{blank}]".encode())
    data = parse(written)["inputs"][0]["data"]
    assert (data if isinstance(data, list) else data.tolist()) == (array.tolist() if isinstance(data, list) else array.reshape(-1).tolist())


NUMBERS = b"1," * MANY

ODD = [
    b"[%b2]" % NUMBERS.replace(b"1", b"true"),
    b"[%b2]" % NUMBERS.replace(b"1", b"18446744073709551615"),
    b"[%bnull]" % NUMBERS,
    b"[%b[],2]" % NUMBERS,
    b'[%b"x"]' % NUMBERS,
    b'["x",%b2]' % NUMBERS,
    b'[%b{"a":1}]' % NUMBERS,
]


@pytest.mark.parametrize("written", ODD, ids=range(len(ODD)))
def test_mixed_content_is_left_to_the_parser(written: bytes):
    assert parse(written)["inputs"][0]["data"] == parse_json(written, LIMITS)


BROKEN = [
    b"[%b]" % NUMBERS,
    b"[,%b1]" % NUMBERS,
    b"[%b,1]" % NUMBERS,
    b"[%b1" % NUMBERS,
    b"[%b1]]" % NUMBERS,
    b"[[%b1]" % NUMBERS,
    b"[%b1],[2]" % NUMBERS,
    b"[%b1][2]" % NUMBERS,
    b"[%b1 2]" % NUMBERS,
    b"[[%b1][2]]" % NUMBERS,
    b"[%b01]" % NUMBERS,
    b"[%bnan]" % NUMBERS,
    b"[%bNaNNaN]" % NUMBERS,
    b"[%b1e999]" % NUMBERS,
    b"[%b-]" % NUMBERS,
    b"[" * 101 + NUMBERS + b"1" + b"]" * 101,
]


@pytest.mark.parametrize("written", BROKEN, ids=range(len(BROKEN)))
def test_invalid_json_is_refused(written: bytes):
    with pytest.raises(InvalidRequest):
        parse(written)


def test_run_outside_the_data_of_an_input_is_not_a_tensor():
    parsed = parse(b"[1]", tail=b',"data":[%b1]' % NUMBERS)
    assert isinstance(parsed["inputs"][0]["data"], list)


def test_quoted_run_is_text():
    value = f'"data":[{NUMBERS.decode()}1]'
    assert parse(b"[%b]" % text(value))["inputs"][0]["data"] == [value]


class Looked(bytes):
    """Counts the bytes that are scanned."""

    scanned = 0

    def find(self, *arguments: Any) -> int:
        _, start, end = (*arguments, len(self))[:3]
        at = super().find(*arguments)
        self.scanned += (end if at < 0 else at) - start
        return at

    def rfind(self, *arguments: Any) -> int:
        _, start, end = arguments
        at = super().rfind(*arguments)
        self.scanned += end - max(at, start)
        return at


def test_many_beginnings_of_runs_are_scanned_once():
    with pytest.raises(InvalidRequest):
        parse_infer_json(b'"data":[' * 50_000, LIMITS)
    text = Looked(b'"data":[' * 1000)
    for at in range(7, len(text), 8):
        assert _run_end(text, at) > at
    # For a quote, a brace, and a bracket.
    assert 0 < text.scanned <= 3 * len(text)


def decode(datatype: DataType, data: bytes, count: int) -> Any:
    _, check = SignatureChecks(FakeEngine(echo(datatype)), LIMITS).find(f"echo_{datatype.value.lower()}", None)
    body = b'{"inputs":[{"name":"INPUT","datatype":"%b","shape":[1,%d],"data":%b}]}' % (datatype.value.encode(), count, data)
    target = http_codec.Target(f"echo_{datatype.value.lower()}", None, 0)
    return http_codec.decode(check, target, http_codec.parse_head(body, None, LIMITS), body, None, LIMITS).request.inputs["INPUT"]


NUMERIC = [t for t in DataType if t.value.startswith(("INT", "UINT")) or t in (DataType.FP32, DataType.FP64)]


@pytest.mark.parametrize("datatype", NUMERIC)
def test_every_numeric_type_is_read_from_a_run(datatype: DataType):
    array = decode(datatype, b"[%b7]" % NUMBERS, MANY + 1)
    assert array.dtype == datatype.numpy
    assert array[0, -1] == 7
    assert array.sum() == MANY + 7 or datatype.item_bytes == 1


@pytest.mark.parametrize("count", [2, MANY])
def test_non_finite_numbers_are_read_like_triton(count: int):
    array = decode(DataType.FP32, b"[%bNaN,-Infinity,Infinity]" % (b"0," * count), count + 3)
    assert array[0, -4:].tolist()[:1] == [0.0]
    assert np.isnan(array[0, -3])
    assert array[0, -2:].tolist() == [-np.inf, np.inf]


REJECTED = [
    (DataType.FP32, b"[%bNaN,1e39]" % NUMBERS[2:], "outside the range of FP32"),
    (DataType.INT32, b"[%bNaN]" % NUMBERS, "integers of 32 bits"),
    (DataType.INT32, b"[%b1.5]" % NUMBERS, "integers of 32 bits"),
    (DataType.INT8, b"[%b128]" % NUMBERS, "outside the range of INT8"),
    (DataType.UINT64, b"[%b-1]" % NUMBERS, "outside the range of UINT64"),
    (DataType.FP32, b"[%b1e39]" % NUMBERS, "outside the range of FP32"),
    (DataType.BYTES, b"[%b1]" % NUMBERS, "must hold only strings"),
    (DataType.BOOL, b"[%b1]" % NUMBERS, "true or false"),
    (
        DataType.FP32,
        b"[%b1,2]" % NUMBERS,
        f"expected {MANY + 1} elements for inference input 'INPUT' for model 'echo_fp32', got {MANY + 2}",
    ),
]


@pytest.mark.parametrize(("datatype", "data", "words"), REJECTED, ids=[f"{t.value}-{w[:20]}" for t, _, w in REJECTED])
def test_runs_are_validated_like_lists(datatype: DataType, data: bytes, words: str):
    with pytest.raises(InvalidRequest, match=words):
        decode(datatype, data, MANY + 1)
