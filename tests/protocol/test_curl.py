"""The HTTP port tested by curl, which sends forms by default, waits for 100-continue before large bodies, and requests compression."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str | Path) -> tuple[int, str]:
    """The response's status and body."""
    command = ["curl", "-sS", "-w", "\n%{http_code}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def images(count: int) -> Any:
    with np.load(REPOSITORY_ROOT / "examples" / "digits" / "heldout.npz") as heldout:
        return heldout["images"][:count]


@pytest.mark.parametrize("model", ["digits", "digits_ipu", "digits_gcu"])
def test_tensorflow_serving_rest_responds_to_curl_for_every_backend(model: str, server: ServerProcess):
    rows = images(3)
    url = f"http://{server.http}/v1/models/{model}"
    status, body = curl("-d", json.dumps({"instances": rows.tolist()}), f"{url}:predict")
    assert status == 200, body
    predictions = json.loads(body)["predictions"]
    assert (len(predictions), len(predictions[0])) == (3, 10)
    status, body = curl("-X", "POST", "-d", json.dumps({"inputs": rows.tolist()}), f"{url}/versions/1:predict")
    assert status == 200, body
    np.testing.assert_allclose(json.loads(body)["outputs"], predictions)
    status, body = curl(
        "-d",
        json.dumps({"inputs": [{"name": "image", "shape": [3, 8, 8], "datatype": "FP32", "data": rows.ravel().tolist()}]}),
        f"http://{server.http}/v2/models/{model}/infer",
    )
    assert status == 200, body
    np.testing.assert_allclose(np.reshape(json.loads(body)["outputs"][0]["data"], (3, 10)), predictions, rtol=1e-5)
    status, body = curl(url)
    assert (status, json.loads(body)["model_version_status"][0]["state"]) == (200, "AVAILABLE")
    status, body = curl(f"{url}/metadata")
    assert (status, json.loads(body)["model_spec"]["name"]) == (200, model)


def test_curl_shows_an_error_with_and_without_fail(server: ServerProcess):
    url = f"http://{server.http}/v1/models/ghost:predict"
    assert curl("-d", '{"instances": [1]}', url) == (404, '{"error":"Servable not found for request: Latest(ghost)"}')
    done = subprocess.run(
        ["curl", "-sS", "--fail", "-d", '{"instances": [1]}', url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "404" in done.stderr) == (22, True)


def test_large_body_with_100_continue_chunks_or_compression_is_accepted(server: ServerProcess, tmp_path: Path):
    # Spaces are JSON too: over the 1 MB from which curl asks first.
    (tmp_path / "body").write_text(json.dumps({"instances": images(2).tolist()}) + " " * 2_000_000)
    url = f"http://{server.http}/v1/models/digits:predict"
    expected = curl("-d", json.dumps({"instances": images(2).tolist()}), url)
    assert expected[0] == 200
    shown = subprocess.run(
        ["curl", "-sv", "-H", "Expect: 100-continue", "--data-binary", f"@{tmp_path / 'body'}", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "HTTP/1.1 100" in shown.stderr
    assert shown.stdout == expected[1]
    for more in (("-H", "Transfer-Encoding: chunked"), ("--compressed",), ("--http1.0",)):
        assert curl(*more, "--data-binary", f"@{tmp_path / 'body'}", url) == expected


def test_one_connection_serves_many_requests(server: ServerProcess):
    urls = [
        f"http://{server.http}/{path}"
        for path in ("v2", "v2/models/simple", "v2/health/ready", "v2/models/simple/config", "v1/models/simple")
    ]
    command = ["curl", "-sS", "-w", "\n%{stderr}%{num_connects} %{http_code}\n", *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.splitlines()) == (0, ["1 200"] + ["0 200"] * 4)
