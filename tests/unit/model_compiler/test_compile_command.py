"""`model-compiler`: the sources of its request, its output, its callback and its exit code."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from model_compiler.command import PAUSE_S, RETRIES, check_url, main, send_result

from stoker.compiler.errors import OptionError
from tests.fakes.compile_requests import Devices


@dataclass
class Receiver:
    """An HTTP server that responds with `codes` in turn, repeating the last one."""

    codes: list[int]
    bodies: list[Any] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    url: str = ""

    def response(self) -> int:
        return self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]


@contextmanager
def receiving(*codes: int) -> Iterator[Receiver]:
    receiver = Receiver(list(codes))

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            receiver.methods.append(f"{self.command} {self.headers['Content-Type']}")
            receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(receiver.response())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/result"
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


def environment(fields: dict[str, Any], **more: str) -> dict[str, str]:
    named = {name.upper(): str(value) for name, value in fields.items() if name != "input_model"}
    return {**named, "ONNX_PATH": fields["input_model"], **more}


def test_request_in_the_environment_is_compiled(
    devices: Devices, request_of: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([], environment=environment(request_of(version=3))) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"status": "success", "path": str(tmp_path / "models" / "net_3.zip")}


def test_request_in_a_file_is_compiled(devices: Devices, request_of: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps(request_of()))
    assert main(["-s", "json", "-p", str(tmp_path / "request.json")], environment={}) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "success"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1,\n "a"}', r"request.json:2: no valid JSON"),
        ('{"model_name": "a", "model_name": "b"}', r"request.json: 'model_name' is written twice"),
        ("[1]", "expected an object with the fields of a request, got list"),
        ("{}", "serving_type is missing\nmodel_name is missing"),
        (None, "cannot read"),
    ],
)
def test_bad_file_is_a_failure(text: str | None, error: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    if text is not None:
        path.write_text(text)
    assert main(["-s", "json", "-p", str(path)], environment={}) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "failure"
    assert error in result["error_msg"]


@pytest.mark.parametrize("words", [["-s", "json"], ["-p", "x"], ["-s", "yaml"], ["--wrong"]])
def test_wrong_command_line_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words, environment={}) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("usage: model-compiler")
    assert captured.out == ""


def test_help_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Exit codes: 0 compiled" in capsys.readouterr().out


def test_callback_receives_success_and_failure(devices: Devices, request_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with receiving(200) as receiver:
        assert main([], environment=environment(request_of(), CALLBACK=receiver.url)) == 0
        assert main([], environment=environment(request_of(serving_type="tf"), CALLBACK=receiver.url)) == 1
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert receiver.bodies == printed
    assert [each["status"] for each in printed] == ["success", "failure"]
    assert receiver.methods == ["PUT application/json"] * 2


def test_request_may_name_its_callback(devices: Devices, request_of: Any, tmp_path: Path) -> None:
    with receiving(204) as receiver:
        (tmp_path / "request.json").write_text(json.dumps(request_of(callback=receiver.url)))
        assert main(["-s", "json", "-p", str(tmp_path / "request.json")], environment={}) == 0
    assert receiver.bodies[0]["status"] == "success"


def test_callback_that_refuses_fails_the_command(devices: Devices, request_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with receiving(404) as receiver:
        assert main([], environment=environment(request_of(), CALLBACK=receiver.url)) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["status"] == "success"  # what was compiled is there nevertheless
    assert "did not take the result" in captured.err
    assert len(receiver.bodies) == 1


def test_failing_receiver_is_tried_again_after_a_pause() -> None:
    pauses: list[float] = []
    with receiving(503, 500, 200) as receiver:
        assert send_result(receiver.url, {"status": "success"}, pause=pauses.append)
    assert (len(receiver.bodies), pauses) == (3, [PAUSE_S, PAUSE_S])


def test_number_of_tries_is_bounded() -> None:
    pauses: list[float] = []
    with receiving(503) as receiver:
        assert not send_result(receiver.url, {"status": "success"}, pause=pauses.append)
    assert len(receiver.bodies) == RETRIES + 1
    closed = receiver.url  # no server listens there any more
    assert not send_result(closed, {"status": "success"}, pause=pauses.append)
    assert pauses == [PAUSE_S] * RETRIES * 2


@pytest.mark.parametrize("url", ["", "host/path", "file:///etc/passwd", "http://", "http://host:port/", "ftp://host/"])
def test_only_web_addresses_are_called(url: str) -> None:
    with pytest.raises(OptionError, match="callback: expected an http or https URL"):
        check_url(url)


def test_invalid_callback_stops_before_compiling(devices: Devices, request_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], environment=environment(request_of(), CALLBACK="file:///tmp/x")) == 1
    assert json.loads(capsys.readouterr().out)["error_msg"] == "callback: expected an http or https URL, got 'file:///tmp/x'"
    assert devices.gcu.sources == ()


def test_callback_is_sent_although_the_reader_of_the_output_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with receiving(200) as receiver, os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main([], environment={"SERVING_TYPE": "tf", "CALLBACK": receiver.url}) == 1
    assert receiver.bodies[0]["status"] == "failure"
