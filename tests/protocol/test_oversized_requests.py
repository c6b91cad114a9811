"""Requests of more rows than a batch, through a running server: one response over every protocol."""

import json
from pathlib import Path

import pytest

from tests.fakes.server_process import running_server

TENSORS = "".join(f'{kind} {{ name: "{kind.upper()}" data_type: TYPE_FP32 dims: 2 }}\n' for kind in ("input", "output"))
SPLITS = 'parameters { key: "split_oversized_requests" value { string_value: "true" } }\n'
ROWS = [[float(row), -float(row)] for row in range(11)]


@pytest.mark.parametrize("is_split", [True, False])
def test_request_larger_than_a_batch_runs_in_parts_only_if_the_model_says_so(tmp_path: Path, is_split: bool):
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.identity").touch()
    (version.parent / "config.pbtxt").write_text(f'backend: "identity"\nmax_batch_size: 4\n{TENSORS}{SPLITS if is_split else ""}')
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "run") as server:
        body = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [11, 2], "data": ROWS}]}
        status, text = server.get("/v2/models/m/infer", json.dumps(body).encode())
        if not is_split:
            assert (status, b"batch-size must be <= 4" in text) == (400, True)
            return
        assert status == 200, text
        [output] = json.loads(text)["outputs"]
        assert (output["shape"], output["data"]) == ([11, 2], [value for row in ROWS for value in row])
        assert server.json("/v1/models/m:predict", {"instances": ROWS}) == {"predictions": ROWS}
        [stats] = server.json("/v2/models/m/stats")["model_stats"]
        assert (stats["inference_count"], stats["execution_count"], stats["inference_stats"]["success"]["count"]) == (22, 6, 2)
