"""The example `pipeline`: an ensemble of two Python models around a classifier for a simulated device."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.server_process import PATIENCE_S, REPOSITORY_ROOT, running_server

pytestmark = [pytest.mark.protocol, pytest.mark.timeout(300)]
EXAMPLE = REPOSITORY_ROOT / "examples" / "pipeline"
TEXTS = {
    "rain and wind with some thunder": "weather",
    "the choir was very good": "music",
    "Bread, cheese; soup!": "food",
    "a tennis match": "sport",
}


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("target", ["gcu", "ipu", "cpu"])
def test_pipeline_names_the_topics_of_texts(target: str, tmp_path: Path):
    repository = tmp_path / "models"
    run(str(EXAMPLE / "build.py"), f"--repository={repository}", f"--target={target}")
    with running_server(f"--model_base_path={repository}", at=tmp_path / "server") as server:
        lines = run(str(EXAMPLE / "ask.py"), *TEXTS, f"--server=http://{server.http}", "--times").splitlines()
        assert [line.split()[0] for line in lines[: len(TEXTS)]] == list(TEXTS.values())
        assert [line.split(":")[0] for line in lines[len(TEXTS) :]] == ["tokenise", "classify", "label"]
        body = {
            "inputs": [{"name": "TEXT", "shape": [len(TEXTS), 1], "datatype": "BYTES", "data": list(TEXTS)}],
            "outputs": [{"name": "SCORES"}],
        }
        scores = server.json("/v2/models/topic/infer", body)["outputs"][0]
        assert scores["shape"] == [len(TEXTS), 4]
        np.testing.assert_allclose(np.reshape(scores["data"], scores["shape"]).sum(axis=1), 1, atol=1e-2)
        [label] = json.loads(server.get("/v2/models/label/stats")[1])["model_stats"]
        assert label["inference_count"] == len(TEXTS), "the last step does not run for the scores alone"
