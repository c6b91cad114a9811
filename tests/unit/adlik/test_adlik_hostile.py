"""Any request gets a response or one error of the taxonomy, and nothing stays reserved."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.errors import ServingError
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.strict_json import parse_bounded
from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.pb.adlik import predict_pb2
from stoker.server.protocols.adlik.predict import Predict
from stoker.server.protocols.adlik.request import ModelQuery
from stoker.server.protocols.adlik.rest_choice import of_body
from stoker.server.protocols.settings import AdlikSettings
from tests.fakes.adlik_calls import predict_request
from tests.fakes.fake_engine import FakeEngine, echo, simple
from tests.fakes.message_calls import respond

FIELDS = [
    "dtype",
    "tensor_shape",
    "dim",
    "size",
    "tensor_content",
    "int_val",
    "float_val",
    "string_val",
    "half_val",
    "cls",
    "count",
    "intVal",
]
TEXTS = st.text(max_size=6) | st.sampled_from(["DT_INT32", "AAAA", "NaN", "16"])
leaves = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | TEXTS
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4), max_leaves=12
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.integers(0, 9) | values,
        "inputs": st.dictionaries(st.sampled_from(["INPUT0", "INPUT1", "x"]), values, max_size=3) | values,
        "output_filter": st.dictionaries(st.sampled_from(["OUTPUT0", "y"]), values, max_size=2) | values,
        "model_spec": st.fixed_dictionaries({}, optional={"name": values, "version": values, "version_label": values}) | values,
        "instances": values,
    },
)


def answered(work) -> bool:
    """Whether `work(Predict, engine)` succeeded; any exception but a `ServingError` fails the test."""
    engine = FakeEngine(simple(), echo(DataType.FP32, (-1, 2), name="open"))

    async def run() -> bool:
        try:
            await work(Predict(engine, Limits()), engine)
        except ServingError:
            return False
        return True

    done = asyncio.run(run())
    assert engine.reserved_bytes == 0
    return done


@pytest.mark.slow
@given(bodies, st.sampled_from(["simple", "open", "ghost", ""]))
def test_mutated_json_body_has_a_defined_outcome(body, name):
    text = json.dumps(body).encode()

    async def work(predict: Predict, engine: FakeEngine) -> None:
        with Reservation(engine.budget) as reservation:
            given_ = parse_bounded(text, Limits())
            of_body(AdlikSettings(), given_)
            await predict.from_json(ModelQuery(name), given_, len(text), reservation)

    answered(work)


ROWS = np.ones((2, 16), np.int32)
WHOLE = predict_request({"INPUT0": ROWS, "INPUT1": ROWS}, 2).SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4), st.booleans())
def test_mutated_byte_has_a_defined_outcome(changes, is_padded):
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    # An unknown field of some KiB sends the request down the way of large ones.
    data += b"\x7a\x80\x28" + bytes(5120) if is_padded else b""

    async def work(predict: Predict, _engine: FakeEngine) -> None:
        predict_pb2.PredictResponse.FromString(await respond(predict, bytes(data)))

    answered(work)


def test_unchanged_request_gets_a_response_in_both_forms():
    for data in (WHOLE, WHOLE + b"\x7a\x80\x28" + bytes(5120)):

        async def work(predict: Predict, _engine: FakeEngine, data: bytes = data) -> None:
            await respond(predict, data)

        assert answered(work)
