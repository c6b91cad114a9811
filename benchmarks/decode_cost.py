"""The cost of decoding one inference request, by protocol: `python -m benchmarks.decode_cost [NAME ...]`.

Each case decodes requests of two INT32 tensors of 16 elements: the first request of a new codec, and later requests of the same structure
with other elements. The clock stops where the engine would run the request, so that the figures contain neither the model nor the response.
The
cases take turns in one process. The table gives the least value, the median and the largest value of all rounds, in us. On a shared
machine, compare the least values.
"""

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.pb import grpc_service_pb2
from stoker.server.pb.adlik import predict_pb2 as adlik_pb2
from stoker.server.pb.tensorflow.core.framework import types_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2
from stoker.server.protocols.adlik.predict import Predict as AdlikPredict
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.exchange import HttpCall
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall
from stoker.server.protocols.kserve.inference import Inference
from stoker.server.protocols.settings import AdlikSettings
from stoker.server.protocols.tfs.predict import Predict, Targets
from stoker.server.web.v1 import HttpV1
from tests.fakes.fake_engine import FakeEngine, FakeServable, simple

_CALLS, _FIRST_CALLS, _ROUNDS, _BODIES = 500, 50, 15, 64
_LIMITS = Limits()
_NAMES = ("INPUT0", "INPUT1")
#: Without a deadline.
_CALL: Any = HttpCall(())
#: Decodes one body, and returns when the request was decoded.
Decode = Callable[[bytes], int]


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


class _Engine(FakeEngine):
    """Resolves the model to one servable, as a server does, and records the time of a request instead of running it."""

    def __init__(self) -> None:
        super().__init__(simple())
        self._servable = FakeEngine.resolve(self, "simple", None)
        self.came_ns = 0

    def resolve(self, name: str, version: int | None) -> FakeServable:
        return self._servable

    def submit(self, request: InferRequest, done: Any) -> Any:
        self.came_ns = time.perf_counter_ns()

    async def infer(self, request: InferRequest) -> Any:
        self.came_ns = time.perf_counter_ns()
        await _Pause()


def _drive(engine: _Engine, started: Awaitable[object]) -> int:
    """Runs a coroutine until the engine receives its request."""
    running: Any = started
    running.send(None)
    running.close()
    return engine.came_ns


def _kserve_http(header_length: str | None) -> Decode:
    engine = _Engine()
    infer, call = HttpInfer(engine, _LIMITS), InferCall("simple", None, header_length, None, None)

    def decode(body: bytes) -> int:
        infer.decode_now(call, body, 0, Reservation(engine.budget))
        return time.perf_counter_ns()

    return decode


def _kserve_grpc() -> Decode:
    engine = _Engine()
    inference = Inference(engine, _LIMITS)

    def decode(body: bytes) -> int:
        inference.start(body, None)
        return engine.came_ns

    return decode


def _tfs_grpc() -> Decode:
    engine = _Engine()
    predict = Predict(engine, _LIMITS, Targets(engine, _LIMITS))

    def decode(body: bytes) -> int:
        predict.start(body, _CALL)
        return engine.came_ns

    return decode


def _adlik_grpc() -> Decode:
    engine = _Engine()
    predict = AdlikPredict(engine, _LIMITS)

    def decode(body: bytes) -> int:
        predict.start(body, _CALL)
        return engine.came_ns

    return decode


def _rest() -> Decode:
    engine = _Engine()
    rest = HttpV1(engine, _LIMITS, AdlikService(engine, _LIMITS, AdlikSettings()))
    scope: dict[str, Any] = {"method": "POST", "path": "/v1/models/simple:predict", "query_string": b"", "headers": []}

    def decode(body: bytes) -> int:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            raise AssertionError(message)

        return _drive(engine, rest.respond(scope, receive, send))

    return decode


def _elements(at: int) -> list[list[int]]:
    return [list(range(at, at + 16)), list(range(2 * at, 2 * at + 16))]


def _raw(values: list[int]) -> bytes:
    return np.array(values, np.int32).tobytes()


def _kserve_json(at: int, request_id: str) -> bytes:
    inputs = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": data} for name, data in zip(_NAMES, _elements(at), strict=True)]
    return orjson.dumps({"id": request_id, "inputs": inputs})


def _kserve_text(request_id: str) -> bytes:
    size = {"binary_data_size": 64}
    return orjson.dumps(
        {"id": request_id, "inputs": [{"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": size} for name in _NAMES]}
    )


def _kserve_message(at: int, request_id: str, *, is_raw: bool) -> bytes:
    message = grpc_service_pb2.ModelInferRequest(model_name="simple", id=request_id)
    for name, values in zip(_NAMES, _elements(at), strict=True):
        tensor = message.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        if is_raw:
            message.raw_input_contents.append(_raw(values))
        else:
            tensor.contents.int_contents.extend(values)
    return message.SerializeToString()


def _predict_message(message: Any, at: int, *, is_raw: bool) -> bytes:
    message.model_spec.name = "simple"
    for name, values in zip(_NAMES, _elements(at), strict=True):
        tensor = message.inputs[name]
        tensor.dtype = types_pb2.DT_INT32
        for size in (1, 16):
            tensor.tensor_shape.dim.add(size=size)
        if is_raw:
            tensor.tensor_content = _raw(values)
        else:
            tensor.int_val.extend(values)
    return bytes(message.SerializeToString())


def _tfs_json(at: int, *, is_row: bool) -> bytes:
    values = dict(zip(_NAMES, _elements(at), strict=True))
    return orjson.dumps({"instances": [values]} if is_row else {"inputs": {name: [each] for name, each in values.items()}})


def _adlik_json(at: int) -> bytes:
    dims = {"dim": [{"size": "1"}, {"size": "16"}]}
    values = zip(_NAMES, _elements(at), strict=True)
    return orjson.dumps(
        {"batch_size": 1, "inputs": {name: {"dtype": "DT_INT32", "tensor_shape": dims, "int_val": each} for name, each in values}}
    )


class _Case(NamedTuple):
    """A form of request: a function that makes a codec, and the bodies to decode."""

    name: str
    codec: Callable[[], Decode]
    bodies: Sequence[bytes]


def _cases() -> list[_Case]:
    many = range(_BODIES)
    header_length = str(len(_kserve_text("000000")))
    http = lambda: _kserve_http(header_length)  # noqa: E731 - one line for each case below
    raw = bytes(128)
    return [
        _Case("kserve http json, one id", lambda: _kserve_http(None), [_kserve_json(at, "000000") for at in many]),
        _Case("kserve http json, many ids", lambda: _kserve_http(None), [_kserve_json(at, f"{at:06}") for at in many]),
        _Case("kserve http binary, one id", http, [_kserve_text("000000") + raw]),
        # More ids than a cache keeps.
        _Case("kserve http binary, many ids", http, [_kserve_text(f"{at:06}") + raw for at in range(5000)]),
        _Case("kserve grpc raw, one id", _kserve_grpc, [_kserve_message(at, "000000", is_raw=True) for at in many]),
        _Case("kserve grpc raw, many ids", _kserve_grpc, [_kserve_message(at, f"{at:06}", is_raw=True) for at in many]),
        _Case("kserve grpc contents", _kserve_grpc, [_kserve_message(at, "000000", is_raw=False) for at in many]),
        _Case("tfs rest rows", _rest, [_tfs_json(at, is_row=True) for at in many]),
        _Case("tfs rest columns", _rest, [_tfs_json(at, is_row=False) for at in many]),
        _Case("tfs grpc content", _tfs_grpc, [_predict_message(predict_pb2.PredictRequest(), at, is_raw=True) for at in many]),
        _Case("tfs grpc values", _tfs_grpc, [_predict_message(predict_pb2.PredictRequest(), at, is_raw=False) for at in many]),
        _Case("adlik rest values", _rest, [_adlik_json(at) for at in many]),
        _Case(
            "adlik grpc content", _adlik_grpc, [_predict_message(adlik_pb2.PredictRequest(batch_size=1), at, is_raw=True) for at in many]
        ),
        _Case(
            "adlik grpc values", _adlik_grpc, [_predict_message(adlik_pb2.PredictRequest(batch_size=1), at, is_raw=False) for at in many]
        ),
    ]


def _first_us(case: _Case) -> float:
    return min(_cost_us(case.codec(), case.bodies[:1]) for _ in range(_FIRST_CALLS))


def _cost_us(decode: Decode, bodies: Sequence[bytes]) -> float:
    """The median cost over `bodies`, us."""
    costs: list[int] = []
    for body in bodies:
        begun = time.perf_counter_ns()
        costs.append(decode(body) - begun)
    return statistics.median(costs) / 1e3


async def main(names: Sequence[str]) -> None:
    """Prints the costs of the cases whose names begin with one of `names`; of all cases without any."""
    cases = [case for case in _cases() if not names or case.name.startswith(tuple(names))]
    first: dict[str, list[float]] = {case.name: [] for case in cases}
    later: dict[str, list[float]] = {case.name: [] for case in cases}
    decoders = {case.name: case.codec() for case in cases}
    following = {case.name: itertools.cycle(case.bodies) for case in cases}
    for _ in range(_ROUNDS):
        for case in cases:
            first[case.name].append(_first_us(case))
            bodies = list(itertools.islice(following[case.name], _CALLS))
            later[case.name].append(_cost_us(decoders[case.name], bodies))
    print(f"{'us for one request: least, median, most':50}{'first':^26}{'later':^26}")
    for case in cases:
        costs = [f"{min(each):8.2f} {statistics.median(each):8.2f} {max(each):8.2f}" for each in (first[case.name], later[case.name])]
        print(f"{case.name:50}{costs[0]}{costs[1]}")


if __name__ == "__main__":
    # Timeouts need a running event loop.
    asyncio.run(main(sys.argv[1:]))
