"""After all that clients, backends and operators can do at once, every request was counted once, under the reason that is its own."""

import asyncio
import contextlib
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from stoker_client import HttpClient
from tests.fakes.kserve_rows import Ask, Tensor
from tests.fakes.server_process import ServerProcess, running_server, wait_until

SERVICE = "/inference.GRPCInferenceService/ModelInfer"
TENSORS = 'input { name: "x" data_type: TYPE_FP32 dims: 4 }\noutput { name: "y" data_type: TYPE_FP32 dims: 4 }\nmax_batch_size: 8\n'
DAWDLING = """
instance_group { count: 2 }
parameters { key: "execute_delay_ms" value { string_value: "40" } }
parameters { key: "fail_on" value { string_value: "13" } }
"""
MODELS = {
    "quick": "dynamic_batching { }",
    "ordered": f"dynamic_batching {{ preserve_ordering: true }} {DAWDLING}",
    "ranked": f"""
        dynamic_batching {{ priority_levels: 2 default_priority_level: 2 default_queue_policy {{ max_queue_size: 8 }} }} {DAWDLING}
    """,
}
#: Requests of each kind and model: each makes its own mark on the figures.
EACH = 8

Send = Callable[["Clients", str], Awaitable[str]]


def write_models(folder: Path) -> None:
    for name, config in MODELS.items():
        write_version(folder / name, 1)
        (folder / name / "config.pbtxt").write_text(f'backend: "identity"\n{TENSORS}{config}')


def write_version(model: Path, number: int) -> None:
    (model / str(number)).mkdir(parents=True)
    (model / str(number) / "model.identity").touch()


class Clients:
    """One channel with any number of connections. Each method sends one request and returns its outcome."""

    def __init__(self, server: ServerProcess, channel: grpc.aio.Channel) -> None:
        self.server = server
        self._infer = channel.unary_unary(SERVICE, request_serializer=lambda message: message.SerializeToString())

    async def grpc(self, ask: Ask, *, timeout_s: float = 30.0) -> str:
        try:
            await self._infer(ask.message(), timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    async def grpc_cancelled(self, ask: Ask) -> str:
        call = self._infer(ask.message(), timeout=30)
        await asyncio.sleep(random.uniform(0.02, 0.08))
        call.cancel()
        await asyncio.wait([asyncio.ensure_future(call.code())])
        return (await call.code()).name

    async def http(self, ask: Ask) -> str:
        status = await self._http(ask, waits=True)
        return "OK" if status == 200 else str(status)

    async def http_cut(self, ask: Ask) -> str:
        await self._http(ask, waits=False)
        return "CUT"

    async def _http(self, ask: Ask, *, waits: bool) -> int:
        path, body, headers = ask.http()
        head = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.http_port)
        try:
            writer.write(f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body)
            await writer.drain()
            if waits:
                return int((await reader.readline()).split()[1])
            await asyncio.sleep(random.uniform(0.02, 0.08))
            return 0
        finally:
            writer.close()
            await writer.wait_closed()


def asking(model: str, value: float = 1.0, size: int = 4, **parameters: object) -> Ask:
    return Ask(model=model, inputs=[Tensor(name="x", datatype="FP32", shape=(1, size), data=[value] * size)], parameters=parameters)


KINDS: dict[str, Send] = {
    "good": lambda clients, model: clients.grpc(asking(model)),
    "good http": lambda clients, model: clients.http(asking(model)),
    "first": lambda clients, model: clients.grpc(asking(model, priority=1)),
    "wrong": lambda clients, model: clients.grpc(asking(model, size=3)),
    "wrong http": lambda clients, model: clients.http(asking(model, size=3)),
    "failing": lambda clients, model: clients.http(asking(model, value=13.0)),
    "hurried": lambda clients, model: clients.grpc(asking(model, timeout=1_000)),
    "late": lambda clients, model: clients.grpc(asking(model), timeout_s=0.1),
    "cancelled": lambda clients, model: clients.grpc_cancelled(asking(model)),
    "cut": lambda clients, model: clients.http_cut(asking(model)),
}


def counted(server: ServerProcess, model: str) -> Counter[str]:
    """Requests by outcome, of all versions."""
    found: Counter[str] = Counter()
    for line in server.get("/metrics")[1].decode().splitlines():
        match = re.match(rf'nv_inference_request_(success|failure){{.*model="{model}".*}} (\d+)$', line)
        if match:
            reason = re.search(r'reason="(\w+)"', line)
            found[reason[1] if reason else "success"] += int(match[2])
    return found


def settled(server: ServerProcess, model: str, least: int) -> Counter[str]:
    """The same once there are `least`, or after a timeout: the test then reports the missing ones."""
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: counted(server, model).total() >= least, what="all to be counted", patience_s=10)
    return counted(server, model)


def queued(server: ServerProcess, model: str) -> int:
    lines = server.get("/metrics")[1].decode().splitlines()
    return sum(
        int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("nv_inference_pending_request_count") and f'"{model}"' in line
    )


@pytest.mark.parametrize("front", ["h2", "grpcio"])
def test_outcomes_sum_to_the_requests_sent_for_each_model_and_reason(tmp_path: Path, front: str):
    write_models(tmp_path / "models")
    flags = ("--model-control-mode=explicit", "--load-model=*", f"--grpc-front={front}")
    with running_server(f"--model_base_path={tmp_path / 'models'}", *flags, at=tmp_path / "server") as server:
        outcomes = asyncio.run(chaos(server, tmp_path / "models"))
        sent = len(KINDS) * EACH
        for model in MODELS:
            seen = Counter(outcome for (name, _), outcome in outcomes if name == model)
            # grpcio may end a call that is taken back, or late, before its bytes leave the client or reach a handler.
            unsure = seen["CANCELLED"] + seen["DEADLINE_EXCEEDED"]
            figures = settled(server, model, sent - unsure)
            shown = f"{model}: counted {dict(figures)}, seen {dict(seen)}"
            assert sent - unsure <= figures.total() <= sent, shown
            assert queued(server, model) == 0, shown
            gone = unsure + seen["CUT"]
            assert seen["OK"] <= figures["success"] <= seen["OK"] + gone, shown
            assert figures["OTHER"] == 2 * EACH, shown
            assert figures["BACKEND"] <= (0 if model == "quick" else EACH), shown
            assert figures["CANCELED"] <= gone, shown
            assert figures["REJECTED"] <= seen["UNAVAILABLE"] + seen["503"] + gone, shown
        assert counted(server, "ranked")["REJECTED"] > 0
        assert counted(server, "ordered")["CANCELED"] > 0
        assert server.stop() == 0


async def chaos(server: ServerProcess, models: Path) -> list[tuple[tuple[str, str], str]]:
    """Sends `EACH` requests of each kind to each model, in any order, while one model is replaced; returns their outcomes."""
    plan = [(model, kind) for model in MODELS for kind in KINDS] * EACH
    random.Random(6).shuffle(plan)
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        clients = Clients(server, channel)
        await clients.grpc(Ask(model="absent"))  # connected: what comes now reaches the server before any deadline
        room = asyncio.Semaphore(48)

        async def send(model: str, kind: str) -> str:
            async with room:
                return await KINDS[kind](clients, model)

        sending = [asyncio.ensure_future(send(model, kind)) for model, kind in plan]
        with HttpClient(server.http) as admin:
            for number in range(2, 6):
                write_version(models / "quick", number)
                await asyncio.to_thread(admin.load, "quick")
        return list(zip(plan, await asyncio.gather(*sending), strict=True))
