"""Inference of REST below /v1 by the direct routes and by the ASGI application: equal bytes, equal notes, nothing held at the end."""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.api.errors import BackendFailed, NotFound, Overloaded, QueueTimeout
from stoker.backends.api.model import TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferRequest
from stoker.server.net.http1.direct import DirectRoutes
from stoker.server.net.http1.listener import HttpListener
from stoker.server.protocols.adlik.service import AdlikService
from stoker.server.protocols.kserve.infer import HttpInfer
from stoker.server.protocols.services import Services
from stoker.server.protocols.settings import AdlikSettings, RestV1, TfsSettings
from stoker.server.protocols.tfs.service import TfsService
from stoker.server.rpc.restricted import Restrictions
from stoker.server.web.app import WebApp
from tests.fakes.fake_engine import FakeEngine, FakeModel, model, signature, simple

#: Small, so that requests and responses reach the limits.
LIMITS = Limits(decode_inline_bytes=4000, compress_min_bytes=100, json_depth=8, http_body_bytes=20_000)


def _scores() -> FakeModel:
    """x FP32 [2] -> scores FP32 [n], n the first value of the request; suitable for Classify, and for Adlik's classes."""
    of = signature([TensorSpec("x", DataType.FP32, (2,))], [TensorSpec("scores", DataType.FP32, (-1,))])

    def run(inputs: Any) -> Any:
        x = inputs["x"]
        count = int(min(max(x.flat[0], 1), 3000)) if np.isfinite(x.flat[0]) else 1
        scores = np.arange(len(x) * count, dtype=np.float32).reshape(len(x), count)
        scores[:, :1] = x[:, 1:]
        return {"scores": scores}

    return model("scores", of, run, versions=(1, 2), labels={"scores": ["a", "b"]}, version_labels={"stable": 1})


def _number() -> FakeModel:
    """x FP32 [2] -> y FP32 [1], suitable for Regress."""
    of = signature([TensorSpec("x", DataType.FP32, (2,))], [TensorSpec("y", DataType.FP32, (1,))])
    return model("number", of, lambda inputs: {"y": inputs["x"][:, :1]})


def _text() -> FakeModel:
    of = signature([TensorSpec("t", DataType.BYTES, (-1,))], [TensorSpec("u_bytes", DataType.BYTES, (-1,))])
    return model("text", of, lambda inputs: {"u_bytes": inputs["t"]})


def _failing() -> FakeModel:
    """x FP32 [2] -> x; the first value selects an error of the engine."""
    of = signature([TensorSpec("x", DataType.FP32, (2,))], [TensorSpec("y", DataType.FP32, (2,))])

    async def before(request: InferRequest) -> None:
        errors = {1: Overloaded("full", retry_after_s=2.0), 2: QueueTimeout("late"), 3: NotFound("gone"), 4: BackendFailed("broken")}
        error = errors.get(int(request.inputs["x"].flat[0]))
        if error is not None:
            raise error
        if request.inputs["x"].flat[0] == 5:
            raise ZeroDivisionError

    return model("failing", of, lambda inputs: {"y": inputs["x"]}, before=before)


def _engine(budget_bytes: int = 1 << 40) -> FakeEngine:
    return FakeEngine(simple(), _scores(), _number(), _text(), _failing(), budget_bytes=budget_bytes)


Options = dict[str, Any]


@asynccontextmanager
async def _served(engine: FakeEngine, options: Options, *, is_direct: bool) -> AsyncIterator[int]:
    """A listener with the whole web application; returns its port."""
    services = Services(
        engine,
        LIMITS,
        adlik=AdlikService(engine, LIMITS, options.get("adlik", AdlikSettings())),
        tfs=TfsService(engine, LIMITS, options.get("tfs", TfsSettings())),
    )
    services.extensions.http_restrictions = options.get("restrictions", services.extensions.http_restrictions)
    app = WebApp(services, HttpInfer(engine, LIMITS, services.extensions))
    direct: DirectRoutes | None = app.direct_routes() if is_direct else None
    listener = HttpListener(app, LIMITS, "127.0.0.1", 0, direct=direct)
    try:
        yield await listener.start()
    finally:
        await listener.stop(1)


async def _responses(port: int, wires: Sequence[bytes], engine: FakeEngine) -> list[object]:
    """The bytes of the response to each request, sent one after the other, and what the engine has noted."""
    async with AsyncExitStack() as stack:
        return await _responses_of(port, wires, engine, stack)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Closes a connection now: garbage collection during a later test would fail that one."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _responses_of(port: int, wires: Sequence[bytes], engine: FakeEngine, stack: AsyncExitStack) -> list[object]:
    found: list[object] = []
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for wire in wires:
        if connection is None:
            connection = await asyncio.open_connection("127.0.0.1", port)
            stack.push_async_callback(_closed, connection[1])
        reader, writer = connection
        writer.write(wire)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            # The last response came before its body, which then had more chunks than the limit: the server has closed.
            if error.partial or not found:
                raise
            connection = reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.push_async_callback(_closed, writer)
            found.append("closed")
            writer.write(wire)
            head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        body = b"" if wire.startswith(b"HEAD") else await reader.readexactly(size)
        if b"connection: close" in head:
            assert await reader.read() == b""
            connection = None
        notes = (engine.rejected[:], engine.refused_versions[:], engine.failures[:], engine.failed_models[:], engine.failed_versions[:])
        requests = [
            (
                each.model_name,
                each.model_version,
                each.output_names,
                each.rows,
                each.size_bytes,
                each.via,
                each.received_ns,
                each.deadline_ns,
            )
            for each in engine.requests
        ]
        inputs = [{name: (str(array.dtype), array.tolist()) for name, array in each.inputs.items()} for each in engine.requests]
        # The order of fields means nothing: FastAPI's response to a defect has the length first.
        found.append((wire, sorted(head.split(b"\r\n")), body, notes, requests, repr(inputs)))
        for each in (
            engine.rejected,
            engine.refused_versions,
            engine.failures,
            engine.failed_models,
            engine.failed_versions,
            engine.requests,
        ):
            each.clear()
    return found


def _compare(wires: Sequence[bytes], options: Options | None = None, **engine_options: Any) -> list[Any]:
    """Sends `wires` to both; returns the responses, which must be equal."""

    async def main(*, is_direct: bool) -> list[object]:
        engine = _engine(**engine_options)
        async with asyncio.timeout(20), _served(engine, options or {}, is_direct=is_direct) as port:
            found = await _responses(port, wires, engine)
        assert engine.reserved_bytes == 0
        return found

    direct, general = asyncio.run(main(is_direct=True)), asyncio.run(main(is_direct=False))
    for new, old in zip(direct, general, strict=True):
        assert new == old
    return direct


def _wire(body: bytes, path: str, *fields: str, method: str = "POST", version: str = "1.1", is_chunked: bool = False) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: a", *fields]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7)) + b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Maker:
    """Makes requests; a part of them is odd."""

    def __init__(self, random: Random, oddity: float) -> None:
        self.random = random
        self.oddity = oddity

    def pick(self, usual: Sequence[Any], odd: Sequence[Any]) -> Any:
        return self.random.choice(odd if self.random.random() < self.oddity else usual)

    def values(self, count: int) -> list[Any]:
        return [self.pick([0, 1, 2.5, 3, 4, 5, 900, 2500], [float("nan"), float("inf"), None, True, "x", 1e39, [1]]) for _ in range(count)]

    def tensor(self, rows: int) -> dict[str, Any]:
        values = self.values(2 * rows)
        tensor: dict[str, Any] = {"dtype": self.pick(["DT_FLOAT"], ["DT_INT32", "x", 1])}
        if self.random.random() < 0.5:
            tensor["tensor_shape"] = {"dim": [{"size": str(rows)}, {"size": self.pick(["2"], ["3", "x"])}]}
        if self.random.random() < 0.5 and all(type(each) in (int, float) for each in values):
            with np.errstate(over="ignore"):
                tensor["tensorContent"] = base64.b64encode(np.array(values, np.float32).tobytes()).decode()
        else:
            tensor[self.pick(["float_val", "floatVal"], ["int_val"])] = values
        return tensor

    def adlik(self) -> dict[str, Any]:
        rows = self.pick([1, 2], [0, 9])
        body: dict[str, Any] = {"batch_size": rows, "inputs": {self.pick(["x"], ["z"]): self.tensor(rows)}}
        if self.random.random() < 0.5:
            body["output_filter"] = {
                self.pick(["scores"], ["other"]): {"cls": {"count": self.pick([2], ["x"])}} if self.random.random() < 0.5 else {}
            }
        if self.random.random() < 0.3:
            body["model_spec"] = {"version": self.pick([1, "1"], [9, "x"])}
        return body

    def tfs(self) -> dict[str, Any]:
        rows = [self.values(2) for _ in range(self.pick([1, 2], [9]))]
        name = self.pick(["x"], ["z"])
        choices: list[dict[str, Any]] = [
            {"instances": rows},
            {"instances": [{name: row} for row in rows]},
            {"inputs": rows},
            {"inputs": {name: rows}},
        ]
        body = self.random.choice(choices)
        if self.random.random() < 0.3:
            body["signature_name"] = self.pick(["serving_default", ""], ["other", 5])
        return body

    def examples(self) -> dict[str, Any]:
        return {"examples": [{self.pick(["x"], ["z"]): self.values(2)} for _ in range(self.pick([1, 2], [9]))]}

    def body(self) -> bytes:
        given: Any = self.random.choice([self.tfs, self.tfs, self.adlik, self.adlik, self.examples])()
        text = json.dumps(given).encode()
        if self.random.random() < 0.1 * self.oddity:
            return self.random.choice(
                [b"", b"[1]", b"{", b'{"instances":' + b"[" * 20, b'{"x":1,"x":2}', text + b" " * 5000, text + b" " * 30_000, b"\xff"]
            )
        if self.random.random() < self.oddity:
            return text.replace(*self.random.choice([(b"x", b"y"), (b":", b" :"), (b"]", b"]]"), (b'"', b""), (b"1", b"01")]), 1)
        return text

    def path(self) -> str:
        name = self.pick(["scores", "number", "failing", "failing"], ["none", "simple", "text", "..", "a" * 200, "sc%6fres", "a:b"])
        version = self.pick(
            ["", "", "/versions/1", "/labels/stable"], ["/versions/9", "/versions/" + "9" * 25, "/labels/other", "/versions/x"]
        )
        verb = self.pick(["predict"] * 6 + ["classify", "regress"], ["PREDICT", "ml_predict", "other", ""])
        query = self.pick(["", "", "", "?format=tfs", "?format=adlik"], ["?format=x", "?a=b", "?format=tfs&format=adlik", "?"])
        path = f"/v1/models/{name}{version}:{verb}{query}"
        return path.replace("models", "Models") if self.random.random() < 0.1 * self.oddity else path

    def wire(self) -> bytes:
        body = self.body()
        fields: list[str] = []
        if self.random.random() < 0.3:
            fields.append(f"Accept-Encoding: {self.random.choice(['gzip, deflate', 'identity', 'deflate', 'br', '*;q=0'])}")
        if self.random.random() < 0.1:
            encoding = self.pick(["gzip"], ["br", "gzip, gzip", "deflate"])
            fields.append(f"Content-Encoding: {encoding}")
            body = gzip.compress(body, mtime=0)
        if self.random.random() < 0.1:
            fields.append("Connection: close")
        if self.random.random() < 0.2:
            fields.append("Authorization: Bearer secret")
        method = self.pick(["POST"] * 9, ["GET", "HEAD", "PUT", "OPTIONS"])
        version = self.pick(["1.1"] * 9, ["1.0"])
        return _wire(body, self.path(), *fields, method=method, version=version, is_chunked=version == "1.1" and self.random.random() < 0.2)


OPTIONS: dict[str, Callable[[], Options]] = {
    "default": dict,
    "adlik only": lambda: {"adlik": AdlikSettings(rest_v1=RestV1.ADLIK)},
    "tfs only": lambda: {"adlik": AdlikSettings(rest_v1=RestV1.TFS)},
    "prefer adlik": lambda: {"adlik": AdlikSettings(prefer_adlik=True)},
    "timeout": lambda: {"tfs": TfsSettings(rest_timeout_s=30.0)},
    "restricted": lambda: {"restrictions": Restrictions(api_key="secret")},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 1 << 32))
def test_any_request_gets_the_same_response_by_both_ways(name: str, seed: int):
    random = Random(seed)
    makers = [_Maker(random, oddity) for oddity in (0.0, 0.05, 0.3)]
    wires = [random.choice(makers).wire() for _ in range(30)]
    _compare([each for each in wires for _ in range(random.choice([1, 1, 3]))], OPTIONS[name]())
