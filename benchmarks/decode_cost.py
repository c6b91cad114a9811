"""What decoding one infer request over HTTP costs in CPU time, us: `python -m benchmarks.decode_cost`, as one JSON object.

Run it in two checkouts in turn, several times, and compare the least values: a shared machine is only ever too slow.
"""

import itertools
import json
import time
import timeit
from collections.abc import Sequence

import orjson

from stoker.server.core.byte_budget import Reservation
from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve.infer import HttpInfer, InferCall
from tests.fakes.fake_engine import FakeEngine, simple

_CALLS, _ROUNDS = 1000, 10


def _body(request_id: str, *, is_binary: bool) -> tuple[bytes, int]:
    """An infer request of two INT32 tensors of 16 elements, and the length of its JSON part."""
    data: dict[str, object] = {"parameters": {"binary_data_size": 64}} if is_binary else {"data": list(range(16))}
    tensors = [{"name": f"INPUT{at}", "datatype": "INT32", "shape": [1, 16], **data} for at in (0, 1)]
    text = orjson.dumps({"id": request_id, "inputs": tensors})
    return text + bytes(128) if is_binary else text, len(text)


def _cost_us(ids: Sequence[str], *, is_binary: bool) -> float:
    engine, limits = FakeEngine(simple()), Limits()
    infer = HttpInfer(engine, limits)
    bodies = [_body(request_id, is_binary=is_binary) for request_id in ids]
    header_length = str(bodies[0][1]) if is_binary else None
    call, following = InferCall("simple", None, header_length, None, None), itertools.cycle(bodies)

    def decode() -> None:
        infer.decode_now(call, next(following)[0], 0, Reservation(engine.budget))

    return min(timeit.repeat(decode, timer=time.process_time, number=_CALLS, repeat=_ROUNDS)) / _CALLS * 1e6


def main() -> None:
    """Prints the cost of each form of request, with one id and with an id of its own for each."""
    many = [f"{at:06}" for at in range(_CALLS * 3)]
    costs: dict[str, float] = {}
    for form, is_binary in (("json", False), ("binary", True)):
        for kind, ids in (("one id", many[:1]), ("many ids", many)):
            costs[f"http {form}, {kind}"] = round(_cost_us(ids, is_binary=is_binary), 2)
    print(json.dumps(costs))


if __name__ == "__main__":
    main()
