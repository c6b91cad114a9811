"""The calls on a model's page, run as they are printed; its OpenAPI document, judged by a published validator."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.server_process import REPOSITORY_ROOT, ServerProcess, run_python

MODELS = ("simple", "digits", "simple/versions/1")
_CALL = re.compile(r'<h2 id="([\w-]+)">.*?<pre><code>(.*?)</code></pre>', re.DOTALL)
OUTPUTS = {"simple": "OUTPUT0", "digits": "scores"}


def calls(server: ServerProcess, model: str) -> dict[str, str]:
    """The texts of a model's page by their anchors, as a browser copies them."""
    status, page = server.get(f"/models/{model}")
    assert status == 200
    return {key: unescape(text) for key, text in _CALL.findall(page.decode())}


def shell(text: str) -> str:
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("model", MODELS)
def test_curl_calls_of_the_page_get_the_printed_responses(server: ServerProcess, model: str):
    printed = calls(server, model)
    output = OUTPUTS[model.split("/")[0]]
    for key in ("curl-json", "curl-binary"):
        answer = json.loads(shell(printed[key]))
        assert output in [each["name"] for each in answer["outputs"]], key
    assert "outputs" in json.loads(shell(printed["curl-tfs"]))


@pytest.mark.parametrize("model", MODELS)
def test_stoker_client_call_of_the_page_runs(server: ServerProcess, model: str):
    paths = os.pathsep.join([str(REPOSITORY_ROOT), str(REPOSITORY_ROOT / "clients" / "python")])
    command = [sys.executable, "-W", "error", "-c", calls(server, model)["stoker-client"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert done.returncode == 0, done.stderr
    assert OUTPUTS[model.split("/")[0]] in done.stdout


@pytest.mark.parametrize("model", MODELS)
def test_tritonclient_calls_of_the_page_run(server: ServerProcess, clients_python: Path, model: str):
    printed = calls(server, model)
    for key in ("tritonclient-http", "tritonclient-grpc"):
        assert "[[" in run_python(clients_python, printed[key]), key


@pytest.mark.parametrize("model", MODELS)
def test_grpcurl_call_of_the_page_is_a_valid_request(server: ServerProcess, model: str):
    """Its JSON is what grpcurl turns into the request by the server's reflection; here the message does it."""
    printed = calls(server, model)["grpcurl"]
    command = r"grpcurl -plaintext -d (@|'.*') (?:\\\n  )?(\S+) inference\.GRPCInferenceService/ModelInfer"
    found = re.search(command, printed, re.DOTALL)
    assert found is not None
    body = shell(printed.replace(found[0], "cat")) if found[1] == "@" else found[1].strip("'")
    request = json_format.Parse(body, pb.ModelInferRequest())
    with grpc.insecure_channel(found[2].replace("localhost", "127.0.0.1")) as channel:
        answer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(request.SerializeToString(), timeout=30)
    assert pb.ModelInferResponse.FromString(answer).outputs[0].name == OUTPUTS[model.split("/")[0]]


@pytest.mark.parametrize("model", MODELS)
def test_document_is_valid_openapi_and_its_example_gets_a_response(server: ServerProcess, clients_python: Path, model: str):
    document = server.json(f"/v2/models/{model}/openapi.json")
    judge = """
import json, sys
try:
    from openapi_spec_validator import validate
    from jsonschema import Draft202012Validator
except ImportError:
    print("absent")
    raise SystemExit
document = json.loads(sys.argv[1])
validate(document)
for path in document["paths"].values():
    for operation in path.values():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = {**content["schema"], "components": document["components"]}
            Draft202012Validator(schema).validate(content["example"])
print("valid")
"""
    if (said := run_python(clients_python, judge, json.dumps(document)).strip()) == "absent":
        pytest.skip("openapi-spec-validator is not installed: run 'make clients-env'")
    assert said == "valid"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation["requestBody"]["content"]["application/json"]["example"] if method == "post" else None
            server.json(path, body)


def test_list_links_every_model_and_allows_no_script(server: ServerProcess):
    status, page = server.get("/models")
    assert status == 200
    for model in ("digits", "digits_ipu", "digits_gcu", "simple"):
        assert f'<a href="models/{model}">{model}</a>'.encode() in page
        assert server.get(f"/models/{model}/versions/1")[0] == 200
    assert b"<script" not in page


@pytest.mark.parametrize("path", ["/v2/models/ghost/openapi.json", "/v2/models/simple/versions/9/openapi.json"])
def test_document_of_an_unserved_model_is_a_json_error(server: ServerProcess, path: str):
    status, body = server.get(path)
    assert status in (400, 404)
    assert "error" in json.loads(body)


@pytest.mark.parametrize("path", ["/models/ghost", "/models/%3Cscript%3E", "/models/simple/versions/9"])
def test_page_of_an_unserved_model_is_an_error_page(server: ServerProcess, path: str):
    status, page = server.get(path)
    assert status in (400, 404)
    assert page.startswith(b"<!doctype html>")
    assert b"<h1>No such page</h1>" in page
    assert b"<script" not in page
