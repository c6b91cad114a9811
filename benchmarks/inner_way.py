"""The cost of one request inside the server, from message to response, in one process without a transport.

    python -m benchmarks.inner_way [--models tiny mlp] [--batches 1 8 32] [--seconds 2]

Bursts of as many ModelInferRequests as a batch holds are sent to the service, and all must complete. The best burst counts, because other
load of the machine only adds time. A fixed piece of Python code is timed too: the ratios to it can be compared between machines, or between
busy and quiet times.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.in_process import engine_of, message_of
from benchmarks.models import BUILDERS, BenchModel, build_repository
from stoker.server.core.limits import Limits
from stoker.server.protocols.kserve.inference import Inference

#: Least requests of one burst: a burst is timed as a whole.
_BURST_REQUESTS = 256
#: Batches before the clock starts; after these `execution: auto` has decided.
_WARM_UP_BATCHES = 100
_BUDGET_BYTES = 1 << 30
#: The access log is sampled, as in `fronts`; its lines go to a logger that drops them.
_LOGGED_EVERY = 100


@dataclass(frozen=True, slots=True)
class InnerWay:
    """Microseconds for a request at one batch size, and for the fixed piece of Python code at the same time."""

    model: str
    batch: int
    us: float
    yardstick_us: float


async def measure(model: BenchModel, repository: Path, batches: Sequence[int], seconds: float) -> list[InnerWay]:
    """Serves `model` from `repository`, and times batches of each of the sizes for `seconds`.

    Raises:
        RuntimeError: the model does not load, or a request fails.
    """
    async with engine_of(repository) as engine:
        inference, data = Inference(engine, Limits()), message_of(model)
        return [await _time(model.name, inference, data, batch, seconds) for batch in batches]


async def _time(name: str, inference: Inference, data: bytes, batch: int, seconds: float) -> InnerWay:
    for _ in range(_WARM_UP_BATCHES):
        await _burst(inference, data, batch)
    repeats = -(-_BURST_REQUESTS // batch)
    best_us = yardstick_us = float("inf")
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        begun_s = time.perf_counter()
        for _ in range(repeats):
            await _burst(inference, data, batch)
        best_us = min(best_us, (time.perf_counter() - begun_s) * 1e6 / (repeats * batch))
        yardstick_us = min(yardstick_us, _yardstick_us())
    return InnerWay(name, batch, best_us, yardstick_us)


async def _burst(inference: Inference, data: bytes, batch: int) -> None:
    completed = asyncio.get_running_loop().create_future()
    left = batch

    def on_result(reply: bytes | Exception) -> None:
        nonlocal left
        left -= 1
        if isinstance(reply, Exception) and not completed.done():
            completed.set_exception(RuntimeError(f"a request failed: {reply}"))
        elif not left and not completed.done():
            completed.set_result(None)

    for _ in range(batch):
        inference.start(data, None).then(on_result)
    await completed


def _yardstick_us() -> float:
    begun_s, table = time.perf_counter(), dict[int, tuple[int, str]]()
    for number in range(3000):
        table[number & 63] = (number, str(number))
    return (time.perf_counter() - begun_s) * 1e6


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="What a request costs inside the server, without a transport.")
    light = sorted(name for name in BUILDERS if name != "resnet50")
    parser.add_argument("--models", nargs="+", default=["tiny"], choices=light, metavar="NAME", help=f"of {', '.join(light)}")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="requests at once, 1 to 32")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    options = parser.parse_args()
    print("model          batch   us/request   yardstick us")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            [model] = build_repository(Path(folder), (name,)).values()
            for found in uvloop.run(measure(model, Path(folder), options.batches, options.seconds)):
                print(f"{found.model:<14} {found.batch:>5}   {found.us:>10.1f}   {found.yardstick_us:>12.0f}")


if __name__ == "__main__":
    main()
