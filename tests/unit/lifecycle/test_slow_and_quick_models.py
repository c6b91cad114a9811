"""Two real models in one process: a slow one delays no request of a quick one."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.api.clock import SystemClock
from stoker.backends.api.registry import BackendRegistry
from stoker.server.config.pbtxt import parse_pbtxt
from stoker.server.core.request import InferRequest
from stoker.server.core.timers import LoopTimers
from stoker.server.lifecycle.loader import VersionLoader, VersionSource
from stoker.server.lifecycle.servable import Servable
from stoker.server.lifecycle.settings import LoaderSettings
from stoker.server.observability.metrics import Metrics

TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 2 }\noutput { name: "y" data_type: TYPE_FP32 dims: 2 }\nmax_batch_size: 4\n'
SLOW = 'parameters { key: "execute_delay_ms" value { string_value: "1000" } }\n'


async def load(folder: Path, name: str, config: str) -> Servable:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.identity").touch()
    clock = SystemClock()
    timers = LoopTimers(asyncio.get_running_loop(), clock)
    settings = LoaderSettings(cpu_threads=1, max_queue_size=8)
    loader = VersionLoader(BackendRegistry(), clock=clock, timers=timers, recorder=Metrics(clock), area=folder, settings=settings)
    parsed = parse_pbtxt(TENSORS + config, source=f"{name}/config.pbtxt", model_name=name)
    return await loader.load(VersionSource(name=name, version=1, model_dir=folder / name, version_dir=version, parsed=parsed))


async def ask(servable: Servable) -> None:
    inputs = {"x": np.ones((1, 2), np.float32)}
    signature = servable.config.signature
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    request = InferRequest(model_name=servable.name, inputs=inputs, output_names=("y",), signature=signature)
    servable.scheduler.submit(request, done.set_result, lambda: None)
    await done


@pytest.mark.slow
def test_slow_model_delays_no_request_of_a_quick_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        slow, quick = await load(tmp_path, "slow", SLOW), await load(tmp_path, "quick", "")
        waiting = asyncio.ensure_future(ask(slow))
        # Far less than the slow one's one batch takes, on any machine that is not standing still.
        for _ in range(40):
            await asyncio.wait_for(ask(quick), 10)
        assert not waiting.done()
        await asyncio.wait_for(waiting, 10)
        await asyncio.gather(slow.close(), quick.close())

    asyncio.run(scenario())
