"""An unmodified grpcio client that overloads a server on one connection, beside good calls on the same one.

    python overload.py HOST:PORT MODE SECONDS CALLS_PER_S REQUESTS

MODE is `full`, `unknown`, `deadline` or `cancel`. REQUESTS is a JSON object with two serialised ModelInferRequest messages in base64: `bad`
is sent CALLS_PER_S times a second, `good` 20 times. Prints a JSON object: how many calls were `sent`, `ended` as their mode has it, and
`unexpected`, by what they ended with; how many good calls were `good`, and which were `lost`.
"""

import asyncio
import base64
import collections
import json
import sys
import time

import grpc

INFER = "/inference.GRPCInferenceService/ModelInfer"
GOOD_PER_S = 20
TICK_S = 0.01
CANCEL_AFTER_S = 0.01
DEADLINE_S = 0.03
PATIENCE_S = 30.0
#: Below the number of streams that a server allows by default.
MOST_AT_ONCE = 900


def is_expected(mode: str, error: grpc.aio.AioRpcError | None) -> bool:
    """Whether a bad call ended as it should."""
    if error is None:
        return mode == "full"
    if mode == "full":
        return error.code() is grpc.StatusCode.UNAVAILABLE and "queue" in error.details()
    return error.code() is {"unknown": grpc.StatusCode.NOT_FOUND, "deadline": grpc.StatusCode.DEADLINE_EXCEEDED}[mode]


async def overload(address: str, mode: str, duration_s: float, rate: float, requests: dict[str, str]) -> dict[str, object]:
    bad, good = (base64.b64decode(requests[name]) for name in ("bad", "good"))
    ended: collections.Counter[str] = collections.Counter()
    lost: collections.Counter[str] = collections.Counter()
    unexpected: collections.Counter[str] = collections.Counter()
    tasks: set[asyncio.Task[None]] = set()

    async def bad_call() -> None:
        call = infer(bad, timeout=DEADLINE_S if mode == "deadline" else PATIENCE_S)
        if mode == "cancel":
            timer = asyncio.get_running_loop().call_later(CANCEL_AFTER_S, call.cancel)
            code = await call.code()
            timer.cancel()
            is_good, text = code is grpc.StatusCode.CANCELLED, f"{code.name} {await call.details()}"
        else:
            try:
                await call
                is_good, text = is_expected(mode, None), "OK"
            except grpc.aio.AioRpcError as error:
                is_good, text = is_expected(mode, error), f"{error.code().name} {error.details()}"
        if is_good:
            ended["bad"] += 1
        else:
            unexpected[text[:160]] += 1

    async def good_call() -> None:
        try:
            await infer(good, timeout=PATIENCE_S)
            ended["good"] += 1
        except grpc.aio.AioRpcError as error:
            lost[f"{error.code().name} {error.details()}"[:160]] += 1

    def start(work: "collections.abc.Coroutine[object, object, None]") -> None:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(INFER)
        await infer(good, timeout=PATIENCE_S)
        begun_s = time.monotonic()
        sent = good_sent = 0
        while (elapsed_s := time.monotonic() - begun_s) < duration_s:
            while sent < elapsed_s * rate and len(tasks) < MOST_AT_ONCE:
                start(bad_call())
                sent += 1
            while good_sent < elapsed_s * GOOD_PER_S:
                start(good_call())
                good_sent += 1
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*tasks)
    return {"sent": sent, "ended": ended["bad"], "unexpected": unexpected, "good_sent": good_sent, "good": ended["good"], "lost": lost}


if __name__ == "__main__":
    _, address, mode, duration_s, rate, requests = sys.argv
    print(json.dumps(asyncio.run(overload(address, mode, float(duration_s), float(rate), json.loads(requests)))))
