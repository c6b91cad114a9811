"""No name, number or type of TensorFlow Serving's messages may ever change: its clients have them compiled in.

`tfs_descriptors.golden.txt` holds what `proto/` defines of them. Where the published client is installed, every line of it must be one of
its own; fields and messages that are left out here are its alone.
"""

import runpy
import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from stoker.server.pb.tensorflow.core.example import example_pb2, feature_pb2
from stoker.server.pb.tensorflow.core.protobuf import error_codes_pb2, meta_graph_pb2
from stoker.server.pb.tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_management_pb2,
    model_pb2,
    model_service_pb2,
    predict_pb2,
    prediction_service_pb2,
    regression_pb2,
    status_pb2,
)
from stoker.server.pb.tensorflow_serving.config import file_system_storage_path_source_pb2, model_server_config_pb2

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CLIENTS_PYTHON = ROOT / ".venv-clients" / "bin" / "python"
MODULES = (
    example_pb2, feature_pb2, error_codes_pb2, meta_graph_pb2, classification_pb2, get_model_metadata_pb2, get_model_status_pb2,
    inference_pb2, input_pb2, model_management_pb2, model_pb2, model_service_pb2, predict_pb2, prediction_service_pb2, regression_pb2,
    status_pb2, file_system_storage_path_source_pb2, model_server_config_pb2,
)  # fmt: skip
#: Reads the definitions out of the generated files of the published packages, without importing them: that would need TensorFlow.
PUBLISHED = """
import ast, importlib.util, pathlib, re, runpy, sys
from google.protobuf import descriptor_pb2
file_lines = runpy.run_path(sys.argv[1])["file_lines"]
for package in ("tensorflow", "tensorflow_serving"):
    for place in importlib.util.find_spec(package).submodule_search_locations:
        for path in pathlib.Path(place).rglob("*_pb2.py"):
            found = re.search(r"AddSerializedFile\\((b(?:'(?:[^'\\\\]|\\\\.)*'|\\"(?:[^\\"\\\\]|\\\\.)*\\"))\\)", path.read_text())
            if found:
                print(*file_lines(descriptor_pb2.FileDescriptorProto.FromString(ast.literal_eval(found[1]))), sep="\\n")
"""


def golden() -> list[str]:
    return (HERE / "tfs_descriptors.golden.txt").read_text().splitlines()


def test_messages_equal_those_of_the_clients():
    file_lines = runpy.run_path(str(HERE.parent / "protos" / "list_descriptors.py"))["file_lines"]
    found: set[str] = set()
    for module in MODULES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found.update(file_lines(file))
    assert sorted(found) == golden()


@pytest.mark.skipif(not CLIENTS_PYTHON.exists(), reason="no .venv-clients here (`make clients-env` builds it)")
def test_published_client_declares_every_line_of_them():
    probe = [str(CLIENTS_PYTHON), "-c", PUBLISHED, str(HERE.parent / "protos" / "list_descriptors.py")]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if "No module named 'tensorflow" in done.stderr or not done.stdout:
        pytest.skip("TensorFlow Serving's client is not installed: run 'make clients-env'")
    published = set(done.stdout.splitlines())
    # The codes are defined in a file that the published packages take from TensorFlow's compiler.
    assert [line for line in golden() if line not in published and not line.startswith("enum tensorflow.error.Code.")] == []
