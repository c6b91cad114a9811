"""Every request for a served model is counted once, whatever its outcome."""

import json

import numpy as np
import pytest

from stoker_client import GrpcClient, HttpClient, StokerError
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, running_server

A = np.arange(16, dtype=np.int32).reshape(1, 16)


def counts(server: ServerProcess) -> dict[str, int]:
    found = {}
    for line in server.get("/metrics")[1].decode().splitlines():
        if line.startswith("nv_inference_request_") and 'model="simple"' in line and "duration" not in line:
            key, value = line.rsplit(" ", 1)
            found[key.partition('reason="')[2].partition('"')[0] or "success"] = int(value)
    return found


def test_responses_and_refusals_sum_to_the_requests_sent(tmp_path):
    with running_server(f"--model_base_path={SAMPLE_MODELS}", at=tmp_path) as server:
        sent = 0
        for kind, address in ((GrpcClient, server.grpc), (HttpClient, server.http)):
            with kind(address) as client:
                for _ in range(3):
                    client.infer("simple", {"INPUT0": A, "INPUT1": A})
                for wrong in ({"INPUT0": A}, {"INPUT0": A, "INPUT1": A[:, :4]}, {"INPUT0": A, "INPUT1": A.astype(np.float32)}):
                    with pytest.raises(StokerError):
                        client.infer("simple", wrong)
                with pytest.raises(StokerError):
                    client.infer("absent", {"INPUT0": A})
            sent += 6
        broken = server.get("/v2/models/simple/infer", b"{")
        sent += 1
        assert broken[0] == 400, broken
        assert counts(server) == {"success": 6, "REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 7}
        assert sum(counts(server).values()) == sent
        [stats] = json.loads(server.get("/v2/models/simple/stats")[1])["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == stats["inference_stats"]["queue"]["count"] == 6
        assert stats["inference_stats"]["fail"]["count"] == 7
        assert server.stop() == 0
