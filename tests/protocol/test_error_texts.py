"""Triton's error numbers and texts, which clients match: one row for each, over HTTP and over gRPC, against a running server.

Rows of shared memory, restricted APIs and other features stand with those features' own tests.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.kserve_rows import Answer, Ask, Tensor, grpc_answer, http_answer, over_grpc, over_http
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, copy_models, running_server, wait_until

IDENTITY = """
backend: "identity"
{more}
input [ {{ name: "IN" data_type: {kind} dims: [ {dims} ] }} ]
output [ {{ name: "OUT" data_type: {kind} dims: [ {dims} ] }} ]
"""
SLOW = """
parameters { key: "execute_delay_ms" value { string_value: "400" } }
dynamic_batching { default_queue_policy { max_queue_size: 1 allow_timeout_override: true } }
"""
#: Models beside the samples: name, what more its config says, element type, dims.
MODELS = (
    ("text", "max_batch_size: 4", "TYPE_STRING", "-1"),
    ("slow", "max_batch_size: 1" + SLOW, "TYPE_INT32", "1"),
    ("scalar", "", "TYPE_FP32", "-1"),
    ("half", "", "TYPE_FP16", "2"),
    ("failing", 'parameters { key: "fail_on" value { string_value: "13" } }', "TYPE_INT32", "1"),
)


@pytest.fixture(scope="module", params=[("h2", "stoker"), ("grpcio", "uvicorn")], ids=["h2", "grpcio-uvicorn"])
def erring(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with samples and failing models; explicit control; on the native transports, or the others."""
    repository = copy_models(SAMPLE_MODELS, tmp_path_factory.mktemp("erring"), ["simple"])
    for name, more, kind, dims in MODELS:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.identity").touch()
        (repository / name / "config.pbtxt").write_text(IDENTITY.format(more=more, kind=kind, dims=dims))
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    flags = (
        "--model-control-mode=explicit",
        f"--grpc-front={request.param[0]}",
        f"--http-front={request.param[1]}",
        *(f"--load-model={name}" for name in ("simple", *(row[0] for row in MODELS))),
    )
    with running_server(f"--model_base_path={repository}", *flags, at=tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module")
def channel(erring: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(erring.grpc) as opened:
        yield opened


PAIR = (Tensor(name="INPUT0"), Tensor(name="INPUT1"))
#: What is asked, the HTTP status, the gRPC code, and the fragments of the text.
ROWS: dict[str, tuple[Ask, int, str, tuple[str, ...]]] = {
    "a good request": (Ask(inputs=PAIR), 200, "OK", ()),
    "an unknown model": (Ask(model="none"), 400, "NOT_FOUND", ("Request for unknown model: 'none' is not found",)),
    "a missing version": (Ask(version="9", inputs=PAIR), 404, "NOT_FOUND", ("Request for unknown model: 'simple' version 9 is not found",)),
    "too few inputs": (
        Ask(inputs=PAIR[:1]),
        400,
        "INVALID_ARGUMENT",
        ("[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'simple'", "missing required input(s) ['INPUT1']"),
    ),
    "too many inputs": (
        Ask(inputs=(*PAIR, Tensor(name="INPUT2"))),
        400,
        "INVALID_ARGUMENT",
        ("expected 2 inputs but got 3 inputs for model 'simple'",),
    ),
    "an input twice": (Ask(inputs=(PAIR[0], PAIR[0])), 400, "INVALID_ARGUMENT", ("input 'INPUT0' already exists in request",)),
    "an unknown input": (
        Ask(inputs=(PAIR[0], Tensor(name="X"))),
        400,
        "INVALID_ARGUMENT",
        ("unexpected inference input 'X' for model 'simple'",),
    ),
    "an unknown output": (
        Ask(inputs=PAIR, outputs=["X"]),
        400,
        "INVALID_ARGUMENT",
        ("unexpected inference output 'X' for model 'simple'",),
    ),
    "an output twice": (
        Ask(inputs=PAIR, outputs=["OUTPUT0", "OUTPUT0"]),
        400,
        "INVALID_ARGUMENT",
        ("output 'OUTPUT0' already exists in request",),
    ),
    "another shape": (
        Ask(id="7", inputs=(Tensor(name="INPUT0", shape=(1, 8)), PAIR[1])),
        400,
        "INVALID_ARGUMENT",
        ("[request id: 7] unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,8]",),
    ),
    "no shape": (
        Ask(inputs=(Tensor(name="INPUT0", shape=()), PAIR[1])),
        400,
        "INVALID_ARGUMENT",
        ("input 'INPUT0' has no shape but model requires batch dimension for 'simple'",),
    ),
    "a negative dimension": (
        Ask(model="scalar", inputs=(Tensor(name="IN", datatype="FP32", shape=(-1,), data=[1.0]),)),
        400,
        "INVALID_ARGUMENT",
        ("has shape [-1]",),
    ),
    "too many rows": (
        Ask(inputs=(Tensor(name="INPUT0", shape=(9, 16)), Tensor(name="INPUT1", shape=(9, 16)))),
        400,
        "INVALID_ARGUMENT",
        ("inference request batch-size must be <= 8 for 'simple'",),
    ),
    "rows that differ": (
        Ask(inputs=(PAIR[0], Tensor(name="INPUT1", shape=(2, 16)))),
        400,
        "INVALID_ARGUMENT",
        ("input 'INPUT1' batch size does not match other inputs for 'simple'",),
    ),
    "another data type": (
        Ask(inputs=(Tensor(name="INPUT0", datatype="FP32"), PAIR[1])),
        400,
        "INVALID_ARGUMENT",
        ("inference input 'INPUT0' data-type is 'FP32', but model 'simple' expects 'INT32'",),
    ),
    "bytes that do not fill the shape": (
        Ask(inputs=(Tensor(name="INPUT0", raw=bytes(40)), Tensor(name="INPUT1", raw=bytes(64)))),
        400,
        "INVALID_ARGUMENT",
        ("input byte size mismatch for input 'INPUT0' for model 'simple'. Expected 64, got 40",),
    ),
    "elements that do not fill the shape": (
        Ask(inputs=(Tensor(name="INPUT0", data=[1] * 15), PAIR[1])),
        400,
        "INVALID_ARGUMENT",
        ("expected 16 elements for inference input 'INPUT0' for model 'simple', got 15",),
    ),
    "too few strings": (
        Ask(model="text", inputs=(Tensor(name="IN", datatype="BYTES", shape=(1, 2), data=["a"]),)),
        400,
        "INVALID_ARGUMENT",
        ("expected 2 string elements for inference input 'IN' for model 'text', got 1",),
    ),
    "half a length of a string": (
        Ask(model="text", inputs=(Tensor(name="IN", datatype="BYTES", shape=(1, 2), raw=b"\1\0\0\0a\1\0\0"),)),
        400,
        "INVALID_ARGUMENT",
        ("incomplete string length indicator for inference input 'IN', expecting 4 bytes but only 3 bytes available",),
    ),
    "half a string": (
        Ask(model="text", inputs=(Tensor(name="IN", datatype="BYTES", shape=(1, 1), raw=b"\5\0\0\0ab"),)),
        400,
        "INVALID_ARGUMENT",
        ("incomplete string data for inference input 'IN', expecting string of length 5 but only 2 bytes available",),
    ),
    "a reserved parameter": (
        Ask(inputs=PAIR, parameters={"triton_mine": 1}),
        400,
        "INVALID_ARGUMENT",
        ("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified",),
    ),
    "a name kept by clients": (Ask(inputs=PAIR, parameters={"headers": "x"}), 400, "INVALID_ARGUMENT", ("reserved for Triton usage",)),
    "a priority that is none": (
        Ask(inputs=PAIR, parameters={"priority": -1}),
        400,
        "INVALID_ARGUMENT",
        ("parameter 'priority' must be an unsigned 64-bit integer",),
    ),
    "a sequence id that is none": (
        Ask(inputs=PAIR, parameters={"sequence_id": True}),
        400,
        "INVALID_ARGUMENT",
        ("'sequence_id' must be a string or an unsigned 64-bit integer",),
    ),
    "classes of text": (
        Ask(
            model="text", inputs=(Tensor(name="IN", datatype="BYTES", shape=(1, 1), data=["a"]),), outputs=[("OUT", {"classification": 1})]
        ),
        400,
        "INVALID_ARGUMENT",
        ("classification of output 'OUT' is not possible for data-type BYTES",),
    ),
    "no class": (
        Ask(inputs=PAIR, outputs=[("OUTPUT0", {"classification": 0})]),
        400,
        "INVALID_ARGUMENT",
        ("parameter 'classification' of output 'OUTPUT0' must be an integer of at least 1",),
    ),
    "a model that fails": (
        Ask(model="failing", inputs=(Tensor(name="IN", shape=(1,), data=[13]),)),
        500,
        "INTERNAL",
        ("holds 13, which this model is configured to fail on",),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_infer_errors_have_tritons_texts(name: str, erring: ServerProcess, channel: grpc.Channel):
    ask, http_status, grpc_code, fragments = ROWS[name]
    for answer, status in ((over_http(erring, ask), http_status), (over_grpc(channel, ask), grpc_code)):
        assert answer.status == status, answer
        for fragment in fragments:
            assert fragment in answer.text


def body_of(**fields: object) -> bytes:
    return json.dumps(
        {"inputs": [{"name": n, "datatype": "INT32", "shape": [1, 16], "data": [0] * 16} for n in ("INPUT0", "INPUT1")]} | fields
    ).encode()


INFER = "/v2/models/simple/infer"
HALF = json.dumps({"inputs": [{"name": "IN", "datatype": "FP16", "shape": [2], "data": [1, 2]}]}).encode()
BINARY_HALF = json.dumps({"inputs": [{"name": "IN", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}]}).encode()
HEADER = "Inference-Header-Content-Length"
#: Path, body, headers, status, fragment. What only HTTP can say wrong; JSON faults that are 500 in Triton are the client's: 400.
HTTP_ROWS: dict[str, tuple[str, bytes | None, dict[str, str], int, str]] = {
    "an unknown path": ("/v2/nothing", None, {}, 404, "Not Found"),
    "another method": (INFER, None, {}, 405, "Method Not Allowed"),
    "a version that is no number": ("/v2/models/simple/versions/x/infer", body_of(), {}, 404, "Not Found"),
    "no JSON": (INFER, b"{", {}, 400, "failed to parse the request JSON buffer"),
    "no object": (INFER, b"[]", {}, 400, "must be a JSON object"),
    "inputs that are no array": (INFER, body_of(inputs=1), {}, 400, "Unable to parse 'inputs'"),
    "a header length that is no number": (INFER, body_of(), {HEADER: "x"}, 400, "Unable to parse Inference-Header-Content-Length"),
    "a header length that overflows": (INFER, body_of(), {HEADER: "9" * 30}, 400, "Unable to parse Inference-Header-Content-Length"),
    "a header length beyond the body": (INFER, body_of(), {HEADER: "99999"}, 400, "but the body has only"),
    "bytes nobody asked for": (INFER, body_of() + b"xx", {HEADER: str(len(body_of()))}, 400, "unexpected additional input data"),
    "half floats in JSON": ("/v2/models/half/infer", HALF, {}, 400, "receiving FP16 data via JSON is not supported"),
    "half floats wanted in JSON": (
        "/v2/models/half/infer",
        BINARY_HALF + bytes(4),
        {HEADER: str(len(BINARY_HALF))},
        400,
        "sending FP16 data via JSON is not supported",
    ),
    "an infinity for an integer": (INFER, body_of().replace(b"[0,", b"[Infinity,"), {}, 400, "JSON non-signed-integer as signed-integer"),
    "numbers for text": (
        "/v2/models/text/infer",
        json.dumps({"inputs": [{"name": "IN", "datatype": "BYTES", "shape": [1, 1], "data": [1]}]}).encode(),
        {},
        400,
        "attempt to access JSON non-string as string",
    ),
    "another encoding": (INFER, b"x", {"Content-Encoding": "br"}, 501, "'br'"),
    "a broken gzip": (INFER, b"x", {"Content-Encoding": "gzip"}, 400, "gzip"),
    "a raw body for two inputs": (INFER, bytes(64), {HEADER: "0"}, 400, "needs a model with exactly one input"),
    "a compressed generate": ("/v2/models/simple/generate", b"x", {"Content-Encoding": "gzip"}, 400, "Unsupported Content-Encoding"),
    "a parameter that is an object": (INFER, body_of(parameters={"a": {}}), {}, 400, "parameter 'a' has invalid type"),
    "a named repository": ("/v2/repository/mine/index", b"", {}, 501, "'repository_name' specification is not supported"),
    "an unknown load parameter": (
        "/v2/repository/models/simple/load",
        b'{"parameters": {"x": "y"}}',
        {},
        400,
        "unrecognized load parameter 'x'",
    ),
    "a file without a config": (
        "/v2/repository/models/simple/load",
        b'{"parameters": {"file:1/model.onnx": "eA=="}}',
        {},
        400,
        "'config' must be given along with 'file:<path>'",
    ),
    "a load of nothing": ("/v2/repository/models/none/load", b"", {}, 400, "failed to load 'none', failed to poll from model repository"),
    "a load that fails": ("/v2/repository/models/broken/load", b"", {}, 400, "failed to load 'broken'"),
    "metadata of an unknown model": ("/v2/models/none", None, {}, 400, "Request for unknown model: 'none' is not found"),
    "statistics of an unknown model": ("/v2/models/none/stats", None, {}, 400, "unknown model"),
    "a config of a missing version": ("/v2/models/simple/versions/9/config", None, {}, 404, "version 9"),
}


@pytest.mark.parametrize("name", HTTP_ROWS)
def test_http_only_errors_have_tritons_texts(name: str, erring: ServerProcess):
    path, body, headers, status, fragment = HTTP_ROWS[name]
    answer = http_answer(erring, path, body, headers)
    assert answer.status == status, answer
    assert fragment in answer.text


def named(**fields: object) -> pb.RepositoryModelLoadRequest:
    return pb.RepositoryModelLoadRequest(**fields)  # type: ignore[arg-type]


def both_kinds() -> pb.ModelInferRequest:
    message = Ask(inputs=PAIR).message()
    message.raw_input_contents.extend([bytes(64), bytes(64)])
    return message


#: Method, message, code, fragment. What only gRPC can say wrong, and the control calls.
GRPC_ROWS = {
    "typed and raw contents at once": (
        "ModelInfer",
        both_kinds(),
        "INVALID_ARGUMENT",
        "contents field must not be specified when using raw_input_contents",
    ),
    "a version that is no number": (
        "ModelInfer",
        Ask(version="x", inputs=PAIR).message(),
        "INVALID_ARGUMENT",
        "failed to get model version from specified version string 'x'",
    ),
    "half floats as typed contents": (
        "ModelInfer",
        pb.ModelInferRequest(model_name="half", inputs=[pb.ModelInferRequest.InferInputTensor(name="IN", datatype="FP16", shape=[2])]),
        "INVALID_ARGUMENT",
        "can only be sent as raw_input_contents",
    ),
    "a named repository": (
        "RepositoryModelLoad",
        named(repository_name="r", model_name="simple"),
        "UNIMPLEMENTED",
        "'repository_name' specification",
    ),
    "a load of nothing": (
        "RepositoryModelLoad",
        named(model_name="none"),
        "INVALID_ARGUMENT",
        "failed to load 'none', failed to poll from model repository",
    ),
    "a load that fails": ("RepositoryModelLoad", named(model_name="broken"), "INVALID_ARGUMENT", "failed to load 'broken'"),
    "metadata of an unknown model": (
        "ModelMetadata",
        pb.ModelMetadataRequest(name="none"),
        "NOT_FOUND",
        "Request for unknown model: 'none'",
    ),
    "a config of a missing version": ("ModelConfig", pb.ModelConfigRequest(name="simple", version="9"), "NOT_FOUND", "version 9"),
    "a call that does not exist": ("Nothing", pb.ServerLiveRequest(), "UNIMPLEMENTED", ""),
}


@pytest.mark.parametrize("name", GRPC_ROWS)
def test_grpc_only_errors_have_tritons_texts(name: str, channel: grpc.Channel):
    method, message, code, fragment = GRPC_ROWS[name]
    answer = grpc_answer(channel, method, message)
    assert answer.status == code, answer
    assert fragment in answer.text


def test_readiness_of_an_unknown_model_is_no_error(erring: ServerProcess, channel: grpc.Channel):
    assert erring.get("/v2/models/none/ready")[0] == 400
    assert grpc_answer(channel, "ModelReady", pb.ModelReadyRequest(name="none")) == Answer("OK", "")


def test_known_model_that_is_not_loaded_is_unavailable(erring: ServerProcess, channel: grpc.Channel):
    erring.get("/v2/repository/models/half/unload", b"")
    try:
        ask = Ask(model="half", inputs=())
        text = "Request for unknown model: 'half' has no available versions"
        assert over_http(erring, ask) == Answer(503, text)
        assert over_grpc(channel, ask) == Answer("UNAVAILABLE", text)
    finally:
        assert erring.get("/v2/repository/models/half/load", b"")[0] == 200


@contextmanager
def kept_busy(server: ServerProcess, ask: Ask, askers: int) -> Iterator[None]:
    """Keeps this number of clients busy: each sends its next request when it gets a response."""
    is_enough = threading.Event()

    def asking() -> None:
        while not is_enough.is_set():
            over_http(server, ask)

    threads = [threading.Thread(target=asking) for _ in range(askers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_enough.set()
        for thread in threads:
            thread.join()


def until_refused(ask: Callable[[], Answer], text: str) -> Answer:
    """The first response with `text`; before it one may succeed, or be refused for another reason."""
    answers: list[Answer] = []

    def is_rejected() -> bool:
        answers.append(ask())
        return text in answers[-1].text

    wait_until(is_rejected, what=text)
    return answers[-1]


def test_full_queue_is_unavailable(erring: ServerProcess, channel: grpc.Channel):
    ask = Ask(model="slow", inputs=(Tensor(name="IN", shape=(1, 1), data=[1]),))
    with kept_busy(erring, ask, askers=3):  # one runs, one waits, and the queue is full
        assert until_refused(lambda: over_http(erring, ask), "Exceeds maximum queue size").status == 503
        assert until_refused(lambda: over_grpc(channel, ask), "Exceeds maximum queue size").status == "UNAVAILABLE"


def test_expired_request_is_unavailable(erring: ServerProcess):
    tensor = Tensor(name="IN", shape=(1, 1), data=[1])
    impatient = Ask(model="slow", inputs=(tensor,), parameters={"timeout": 1})
    with kept_busy(erring, Ask(model="slow", inputs=(tensor,)), askers=1):
        assert until_refused(lambda: over_http(erring, impatient), "Request timeout expired").status == 503


def test_loads_are_refused_in_poll_mode(tmp_path):
    repository = copy_models(SAMPLE_MODELS, tmp_path / "models", ["simple"])
    refusal = "explicit model load / unload is not allowed if polling is enabled"
    with running_server(f"--model_base_path={repository}", at=tmp_path / "server") as server, grpc.insecure_channel(server.grpc) as channel:
        answer = http_answer(server, "/v2/repository/models/simple/load", b"")
        assert (answer.status, refusal in answer.text) == (503, True), answer
        answer = grpc_answer(channel, "RepositoryModelLoad", named(model_name="simple"))
        assert (answer.status, refusal in answer.text) == ("UNAVAILABLE", True), answer
