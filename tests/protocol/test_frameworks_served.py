"""Models as TensorFlow, TensorFlow Lite and PaddlePaddle write them, judged by clients of Triton, TensorFlow Serving and Adlik."""

import importlib.util
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker_client.adlik import PredictContext
from tests.fakes.framework_models import VERSION_FOLDERS, VersionFolder, expected, feeds
from tests.fakes.server_process import ServerProcess, running_server

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the 'openvino' extra is not installed")

JUDGE = Path(__file__).parent / "foreign" / "frameworks.py"
#: As Adlik's compiler writes it.
ADLIK_CONFIG = """
name: "{name}"
platform: "{platform}"
max_batch_size: 8
input {{ name: "{inputs[0]}" data_type: DT_FLOAT dims: 4 }}
input {{ name: "{inputs[1]}" data_type: DT_FLOAT dims: 1 }}
output {{ name: "{outputs[0]}" data_type: DT_FLOAT dims: 2 }}
output {{ name: "{outputs[1]}" data_type: DT_FLOAT dims: 2 }}
"""
#: Adlik's own platforms.
ADLIK = ("tensorflow", "tensorflow_lite", "paddle")
TENSOR_NAMES = VERSION_FOLDERS["tflite"]._replace(
    inputs=("serving_default_pixels:0", "serving_default_scale:0"), outputs=("StatefulPartitionedCall:1", "StatefulPartitionedCall:0")
)
ADLIK_FOLDERS = {kind: version for kind, version in VERSION_FOLDERS.items() if version.platform in ADLIK} | {"tensor names": TENSOR_NAMES}


def model_name(kind: str, suffix: str = "") -> str:
    return kind.replace(" ", "_") + suffix


def write(repository: Path, name: str, version: VersionFolder, config: str | None) -> None:
    for path, content in version.files.items():
        file = repository / name / "1" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves each kind without a configuration, with its platform alone, and with Adlik's configuration."""
    folder = tmp_path_factory.mktemp("frameworks")
    repository = folder / "models"
    for kind, version in VERSION_FOLDERS.items():
        write(repository, model_name(kind), version, None)
        write(repository, model_name(kind, "_platform"), version, f'platform: "{version.platform}" max_batch_size: 8')
    for kind, version in ADLIK_FOLDERS.items():
        name = model_name(kind, "_adlik")
        config = ADLIK_CONFIG.format(name=name, platform=version.platform, inputs=version.inputs, outputs=version.outputs)
        write(repository, name, version, config)
    with running_server(f"--model_base_path={repository}", at=folder / "server") as started:
        yield started


@pytest.mark.parametrize("kind", VERSION_FOLDERS)
def test_clients_of_triton_and_tensorflow_serving_get_the_models_outputs(kind: str, server: ServerProcess, clients_python: Path) -> None:
    version = VERSION_FOLDERS[kind]
    names = [model_name(kind, suffix) for suffix in ("", "_platform")]
    models = {name: [version.inputs, version.outputs] for name in names}
    command = [str(clients_python), str(JUDGE), server.http, server.grpc, json.dumps(models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    assert done.stdout.splitlines() == [f"{name} {client}" for name in names for client in ("http", "grpc", "tfs")]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("kind", ADLIK_FOLDERS)
def test_adliks_client_gets_the_models_outputs(kind: str, protocol: str, server: ServerProcess) -> None:
    version = ADLIK_FOLDERS[kind]
    where: dict[str, Any] = {"protocol": protocol, "url": server.grpc if protocol == "grpc" else server.http}
    with PredictContext(model_name(kind, "_adlik"), **where) as context:
        given = dict(zip(version.inputs, feeds(), strict=True))
        found = context.run(given, list(version.outputs), batch_size=3)
    for name, wanted in zip(version.outputs, expected(*feeds()), strict=True):
        np.testing.assert_allclose(np.asarray(found[name].tensor, np.float32), wanted, rtol=1e-5)
