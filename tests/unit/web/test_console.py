"""The routes of the console: files, events, and a model with its calls. tests/protocol/test_console.py tests the pages."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from stoker.backends.api.tensor import DataType
from stoker.backends.testing.fake_clock import FakeClock
from stoker.server.core.limits import Limits
from stoker.server.lifecycle.settings import ControlMode
from stoker.server.observability.history import History
from stoker.server.observability.metrics import Metrics
from stoker.server.protocols.services import Services
from stoker.server.web.console import events
from stoker.server.web.console.assets import POLICY, assets
from stoker.server.web.console.feed import Feed, refusal_of
from stoker.server.web.http_server import http_server
from tests.fakes.fake_engine import FakeEngine, FakeModel, echo, simple

Fetch = Callable[..., Awaitable[tuple[int, dict[str, str], bytes]]]


class Port:
    """A HTTP port with the console, on the test's loop."""

    def __init__(self, *models: FakeModel) -> None:
        self.engine = FakeEngine(*models)
        self.clock = FakeClock()
        self.metrics = Metrics(self.clock)
        self.history: History = self.metrics.history()
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            feed = Feed(self.engine, self.history, ControlMode.EXPLICIT, lambda: ["one card is simulated"])
            front = http_server(Services(self.engine, Limits()), "127.0.0.1", 0, feed=feed)
            self.port = await front.start()
            try:
                async with asyncio.timeout(60):
                    await scenario()
            finally:
                self.history.close()
                self.close()
                await front.stop(1)

        asyncio.run(main())

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    async def open(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> asyncio.StreamReader:
        """The response as a stream; the connection ends with the test."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {path} HTTP/1.1", "host: localhost:8501", "connection: close", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writers.append(writer)
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        return reader

    async def fetch(self, path: str, *, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        reader = await self.open(method, path, headers, b"" if body is None else json.dumps(body).encode())
        head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split(" ")[1]), fields, content


async def next_event(reader: asyncio.StreamReader) -> tuple[str, Any]:
    """Kind and data of the next event of a stream."""
    kind = ""
    while True:
        line = (await reader.readline()).decode().strip()
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return kind, json.loads(line.removeprefix("data: "))


def test_files_have_a_strict_policy_and_are_revalidated():
    port = Port(simple())

    async def scenario() -> None:
        for path in ("/ui/", "/ui/main.js", "/ui/console.css", "/ui/vendor/preact-htm.js"):
            status, fields, body = await port.fetch(path)
            assert (status, fields["content-security-policy"]) == (200, POLICY)
            assert (fields["cache-control"], fields["x-content-type-options"]) == ("no-cache", "nosniff")
            assert body == assets()[path].body
            again, fields, body = await port.fetch(path, **{"if-none-match": f'"other", W/{fields["etag"]}'})
            assert (again, body) == (304, b"")
            assert (await port.fetch(path, method="HEAD"))[::2] == (200, b"")
        status, fields, _ = await port.fetch("/ui")
        assert (status, fields["location"]) == (307, "ui/")
        assert (await port.fetch("/ui/missing.js"))[0] == 404
        assert (await port.fetch("/ui/../console/assets.py"))[0] == 404

    port.run(scenario)


def test_policy_allows_no_inline_script_and_no_other_host():
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_scripts_import_files_that_are_there_and_name_no_host():
    static = files("stoker.server.web").joinpath("console/static")
    for file in static.iterdir():
        if not file.name.endswith(".js"):
            continue
        text = file.read_text(encoding="utf-8")
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert static.joinpath(name).is_file(), f"{file.name} imports {name}"
        assert not re.search(r"https?://|\beval\(|new Function|innerHTML", text), file.name
        assert len(text.splitlines()) < 400, file.name
        assert max(map(len, text.splitlines())) <= 140, file.name


def test_events_are_the_listing_the_past_and_then_each_sample():
    port = Port(simple())

    async def scenario() -> None:
        port.metrics.version("simple", 1, {}).queue_depth = 2
        port.history.sample()
        reader = await port.open("GET", "/ui/api/events")
        kind, listing = await next_event(reader)
        assert kind == "models"
        assert (listing["control_refused"], listing["notices"]) == ("", ["one card is simulated"])
        assert [(each["name"], each["state"]) for each in listing["models"]] == [("never", None), ("simple", "READY")]
        kind, sample = await next_event(reader)
        assert (kind, sample["number"]) == ("sample", 1)
        [[name, version, values]] = sample["points"]
        assert (name, version) == ("simple", 1)
        point = dict(zip(listing["fields"], values, strict=True))
        assert (point["queue_depth"], point["p50_ms"]) == (2, None)
        port.engine.models["simple"].is_ready = False
        port.history.sample()
        assert [(await next_event(reader))[0] for _ in range(2)] == ["models", "sample"]
        port.history.sample()
        kind, sample = await next_event(reader)
        assert (kind, sample["number"]) == ("sample", 3)
        port.history.close()
        assert (await reader.read()).endswith(b"0\r\n\r\n")

    port.run(scenario)


def test_head_of_the_events_has_no_body():
    port = Port(simple())

    async def scenario() -> None:
        status, fields, body = await port.fetch("/ui/api/events", method="HEAD")
        assert (status, fields["content-type"], body) == (200, "text/event-stream; charset=utf-8", b"")

    port.run(scenario)


def test_number_of_event_streams_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "MOST_CLIENTS", 1)
    port = Port(simple())

    async def scenario() -> None:
        reader = await port.open("GET", "/ui/api/events")
        await next_event(reader)
        status, _, body = await port.fetch("/ui/api/events")
        assert status == 503
        assert "1 clients already receive the events" in json.loads(body)["error"]

    port.run(scenario)


def test_stream_whose_client_is_gone_makes_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "MOST_CLIENTS", 1)
    port = Port(simple())

    async def scenario() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(b"GET /ui/api/events HTTP/1.1\r\nhost: x\r\n\r\n")
        await next_event(reader)
        writer.close()
        await writer.wait_closed()
        while (await port.fetch("/ui/api/events", method="HEAD"))[0] == 503:
            # A client that no longer sends may still read: the next event finds that it does not.
            port.history.sample()
            await asyncio.sleep(0.02)

    port.run(scenario)


def test_document_has_tensors_labels_and_origins():
    model = simple()
    model.labels["OUTPUT0"] = ["a", "b"]
    port = Port(model)

    async def scenario() -> None:
        status, _, body = await port.fetch("/ui/api/models/simple")
        document = json.loads(body)
        assert (status, document["version"], document["max_batch_size"], document["devices"]) == (200, 1, 8, ["CPU"])
        assert document["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "dims": [16], "is_optional": False}
        assert document["outputs"][0]["labels"] == ["a", "b"]
        assert document["findings"][1] == {"field": "backend", "origin": "inferred", "text": "fake, by the file"}
        assert (await port.fetch("/ui/api/models/ghost"))[0] == 400

    port.run(scenario)


def calls(model: FakeModel, *inputs: dict[str, Any], status: int = 200) -> dict[str, Any]:
    """The calls by key, or the error, for a request in the console's form."""
    port = Port(model)
    found: dict[str, Any] = {}

    async def scenario() -> None:
        body = {"inputs": list(inputs), "head_bytes": 77}
        given, _, text = await port.fetch(f"/ui/api/models/{model.config.name}/calls", method="POST", body=body)
        assert given == status, text
        answer = json.loads(text)
        found.update(answer if status != 200 else {each["key"]: each for each in answer})

    port.run(scenario)
    return found


def test_short_data_stand_in_the_calls():
    values = list(range(16))
    found = calls(simple(), *({"name": name, "shape": [1, 16], "data": values} for name in ("INPUT0", "INPUT1")))
    assert json.dumps(values) in found["curl-json"]["text"]
    assert f"np.array([{values}], np.int32)" in found["stoker-client"]["text"]
    assert found["curl-json"]["files"] == found["stoker-client"]["files"] == []
    # Raw bytes cannot be read in any case.
    assert "--data-binary @request.bin" in found["curl-binary"]["text"]
    assert "Inference-Header-Content-Length: 77" in found["curl-binary"]["text"]


def test_long_data_are_in_files():
    given = [{"name": "INPUT0", "shape": [4, 16]}, {"name": "INPUT1", "shape": [4, 16]}]
    found = calls(simple(), *given)
    assert found["curl-json"]["text"].endswith("/v2/models/simple/infer -d @request.json")
    assert found["curl-json"]["files"] == [{"name": "request.json", "form": "kserve", "input": ""}]
    assert found["curl-tfs"]["files"] == [{"name": "predict.json", "form": "tfs", "input": ""}]
    assert 'np.load("INPUT0.npy")' in found["tritonclient-http"]["text"]
    assert {"name": "INPUT1.npy", "form": "npy", "input": "INPUT1"} in found["stoker-client"]["files"]


@pytest.mark.parametrize("values", [["grüß", 'a"b'], ["", "x\ny"]])
def test_python_call_makes_the_array_of_the_form(values: list[str]):
    found = calls(echo(DataType.BYTES), {"name": "INPUT", "shape": [1, 2], "data": values})
    [expression] = re.findall(r'"INPUT": (.*),\n', found["stoker-client"]["text"])
    array = eval(expression, {"np": np})
    assert array.shape == (1, 2)
    assert [element.decode() for element in array[0]] == values


def test_bytes_that_are_no_text_are_read_from_their_file():
    found = calls(echo(DataType.BYTES), {"name": "INPUT", "shape": [1, 1], "is_raw": True})
    assert 'Path("INPUT.bin").read_bytes()' in found["stoker-client"]["text"]
    assert "curl-json" not in found


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": "X", "shape": [1, 16]}, "'simple' has no input 'X': expected INPUT0, INPUT1"),
        ({"name": "INPUT0", "shape": [1, 16], "data": [1]}, "input 'INPUT0' has 1 values: expected 16 for [1, 16]"),
        ({"name": "INPUT0", "shape": [-1]}, "'inputs.0.shape.0': Input should be greater than or equal to 0"),
    ],
)
def test_request_that_cannot_be_printed_is_rejected(given: dict[str, Any], text: str):
    assert calls(simple(), given, status=400)["error"] == text


@pytest.mark.parametrize("mode", [ControlMode.NONE, ControlMode.POLL])
def test_refusal_names_the_mode_and_the_remedy(mode: ControlMode):
    assert f"--model-control-mode={mode.value}" in refusal_of(mode)
    assert "start it with --model-control-mode=explicit" in refusal_of(mode)


def test_port_without_the_console_has_no_path_of_it():
    engine = FakeEngine(simple())

    async def main() -> None:
        front = http_server(Services(engine, Limits()), "127.0.0.1", 0)
        port = Port()
        port.port = await front.start()
        for path in ("/ui", "/ui/", "/ui/main.js", "/ui/api/events", "/ui/api/models/simple"):
            assert (await port.fetch(path))[0] == 404, path
        port.close()
        await front.stop(1)

    asyncio.run(main())
