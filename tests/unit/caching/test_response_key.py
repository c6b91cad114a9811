"""Keys of requests: equal if and only if the requests are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.caching.response_key import input_bytes, response_key
from stoker.server.core.request import InferRequest

SIGNATURE = ModelSignature((TensorSpec("IN", DataType.FP32, (-1,)),), (TensorSpec("OUT", DataType.FP32, (-1,)),), 8)
IDENTITY = bytes(16)


def request(inputs, outputs=("OUT",), **fields) -> InferRequest:
    return InferRequest("m", inputs, outputs, SIGNATURE, **fields)


def key(inputs, outputs=("OUT",), identity=IDENTITY, **fields) -> bytes:
    return response_key(identity, request(inputs, outputs, **fields))


def strings(*values: bytes) -> np.ndarray:
    array = np.empty(len(values), dtype=np.object_)
    array[:] = values
    return array


PLAIN = {"IN": np.arange(4, dtype=np.float32)}


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": {"IN": np.arange(1, 5, dtype=np.float32)}},
        {"inputs": {"IN": np.arange(4, dtype=np.float32).view(np.int32)}},
        {"inputs": {"IN": np.arange(4, dtype=np.float32).reshape(2, 2)}},
        {"inputs": {"IN": np.arange(4, dtype=np.float32).reshape(1, 4)}},
        {"inputs": {"IM": np.arange(4, dtype=np.float32)}},
        {"inputs": {**PLAIN, "MORE": np.zeros(0, np.float32)}},
        {"inputs": {"IN": np.array([0, 1, 2, 3], dtype=np.float32) * np.float32(-1)}},
        {"outputs": ("OUT", "SECOND")},
        {"identity": bytes(15) + b"\1"},
        {"parameters": {"top": 1}},
        {"rows": 2},
    ],
    ids=lambda value: next(iter(value)),
)
def test_requests_that_differ_in_one_part_have_different_keys(other: dict) -> None:
    assert key(**{"inputs": PLAIN, **other}) != key(PLAIN)


def test_parameters_of_different_types_have_different_keys() -> None:
    found = {key(PLAIN, parameters={"top": value}) for value in (1, 1.0, True, "1", "True")}
    assert len(found) == 5


def test_positive_and_negative_zero_have_different_keys() -> None:
    assert key({"IN": np.array([0.0], np.float32)}) != key({"IN": np.array([-0.0], np.float32)})


def test_order_of_inputs_and_outputs_and_memory_layout_do_not_matter() -> None:
    a, b = np.arange(6, dtype=np.int64).reshape(2, 3), strings(b"x", b"")
    spread = np.zeros((2, 6), np.int64)[:, ::2]
    spread[...] = a
    assert key({"A": a, "B": b}, ("X", "Y")) == key({"B": b, "A": spread}, ("Y", "X"))


def test_request_id_priority_and_deadline_do_not_matter() -> None:
    assert key(PLAIN, request_id="1", priority=2, deadline_ns=5, timeout_us=7) == key(PLAIN)


@given(st.lists(st.lists(st.binary(max_size=5), max_size=4), min_size=2, max_size=2))
def test_keys_of_strings_are_equal_only_if_all_elements_are(pair: list[list[bytes]]) -> None:
    first, second = pair
    assert (key({"IN": strings(*first)}) == key({"IN": strings(*second)})) == (first == second)


def test_strings_with_their_bytes_shifted_between_elements_have_different_keys() -> None:
    assert key({"IN": strings(b"ab", b"c")}) != key({"IN": strings(b"a", b"bc")})


def test_bytes_of_inputs_are_counted_for_the_choice_of_the_thread() -> None:
    assert input_bytes(request(PLAIN)) == 16
    assert input_bytes(request({"IN": strings(b"abc")}, size_bytes=5000)) == 5000
