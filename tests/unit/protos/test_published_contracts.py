"""The `.proto` files against the published clients: every name, number and type.

`descriptors.golden.txt` was written by `list_descriptors.py` from tritonclient 2.73; where that client is installed it is asked again.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CLIENTS_PYTHON = ROOT / ".venv-clients" / "bin" / "python"

needs_clients = pytest.mark.skipif(not CLIENTS_PYTHON.exists(), reason="no .venv-clients here (`make clients-env` builds it)")


def run(python: Path | str, *arguments: str) -> str:
    done = subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(python: Path | str, *modules: str) -> list[str]:
    # `-m`-less: the script's folder, not this checkout, would head sys.path, so that the checkout is named.
    code = (
        f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return run(python, "-c", code, str(HERE / "list_descriptors.py"), *modules).splitlines()


def golden() -> list[str]:
    return (HERE / "descriptors.golden.txt").read_text().splitlines()


def test_server_messages_have_the_published_names_numbers_and_types() -> None:
    assert listed(sys.executable, "stoker.server.pb.model_config_pb2", "stoker.server.pb.grpc_service_pb2") == golden()


def test_service_has_all_twenty_methods() -> None:
    assert sum(line.startswith("rpc inference.GRPCInferenceService.") for line in golden()) == 20


@pytest.mark.slow
@needs_clients
def test_golden_listing_equals_the_installed_tritonclient() -> None:
    assert listed(CLIENTS_PYTHON, "tritonclient.grpc.model_config_pb2", "tritonclient.grpc.service_pb2") == golden()


# Loaded by path: the client package beside `_pb` needs more than this interpreter may have.
LOAD_OURS = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("private_messages", {str(ROOT / "clients/python/stoker_client/_pb/messages.py")!r})
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
"""
LOAD_THEIRS = "from tritonclient.grpc import service_pb2 as theirs\n"
EXCHANGE = """
mine = ours.ModelInferRequest(model_name="digits", raw_input_contents=[b"ab"])
mine.parameters["k"].int64_param = 7
yours = theirs.ModelInferRequest.FromString(mine.SerializeToString())
assert yours.model_name == "digits" and yours.parameters["k"].int64_param == 7 and yours.raw_input_contents[0] == b"ab"
assert ours.ModelInferRequest.FromString(yours.SerializeToString()) == mine
"""


@pytest.mark.slow
@needs_clients
@pytest.mark.parametrize("order", [LOAD_OURS + LOAD_THEIRS, LOAD_THEIRS + LOAD_OURS], ids=["ours first", "theirs first"])
def test_client_messages_coexist_with_tritonclient_in_one_process(order: str) -> None:
    run(CLIENTS_PYTHON, "-W", "error::DeprecationWarning:private_messages", "-c", order + EXCHANGE)
