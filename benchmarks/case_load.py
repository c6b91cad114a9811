"""One case's load against one server: what is sent, the sending, and what the server says it has answered."""

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.front_cases import Case
from benchmarks.models import BenchModel
from benchmarks.native_load import NativeWindow, Payload, grpc_payload, http_payload, run_load
from benchmarks.servers import Target
from benchmarks.wire import GRPC, encode_request

_METHOD = "inference.GRPCInferenceService/ModelInfer"


def payload_of(case: Case, model: BenchModel, scratch: Path) -> Payload:
    """What `case` sends to `model`."""
    request, at = encode_request(model, case.protocol), scratch / f"{model.name}.{case.protocol}.body"
    return grpc_payload(request, _METHOD, at) if case.protocol == GRPC else http_payload(request, at)


def run_case(case: Case, payload: Payload, target: Target, requests: int, scratch: Path, cores: Sequence[int]) -> NativeWindow:
    """Sends `requests` to `target` as `case` has it, the generator on `cores` (none: on all).

    Raises:
        NativeLoadFailed: see there.
    """
    port = target.grpc_port if case.protocol == GRPC else target.http_port
    return run_load(
        payload,
        port,
        target.pid,
        connections=case.connections,
        streams=case.streams,
        requests=requests,
        cores=cores,
        log=scratch / "h2load.log",
    )


def successes(target: Target, model: str) -> int:
    """How many requests for `model` the server says it has answered well."""
    with urllib.request.urlopen(f"http://127.0.0.1:{target.http_port}/v2/models/{model}/stats", timeout=30) as reply:
        return int(json.load(reply)["model_stats"][0]["inference_stats"]["success"]["count"])
