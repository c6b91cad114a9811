"""A classifier as its exporter wrote it, served without a configuration."""

import json
from pathlib import Path

import numpy as np

from stoker_client import HttpClient
from tests.fakes.classifiers import classifier
from tests.fakes.server_process import running_server


def test_exported_classifier_is_batched_and_names_its_classes(tmp_path: Path) -> None:
    version = tmp_path / "models" / "animals" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(classifier(label_shape=(1,)).SerializeToString())
    with running_server(f"--model-repository={tmp_path / 'models'}", at=tmp_path / "server") as server:
        with HttpClient(server.http) as client:
            found = client.infer("animals", {"x": np.array([[2, 1], [0, 3]], np.float32)})
        assert found["probabilities"].shape == (2, 3)
        assert [each.decode() for each in found["label"].reshape(-1)] == ["cat", "dog"]
        asked = {
            "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [-4, -5]}],
            "outputs": [{"name": "probabilities", "parameters": {"classification": 1}}],
        }
        (best,) = json.loads(json.dumps(server.json("/v2/models/animals/infer", asked)))["outputs"][0]["data"]
        assert best.endswith(":2:fish")
