"""tritonclient, unmodified, in its own environment and process, against the sample models: the judge of the KServe v2 fronts."""

import subprocess
from pathlib import Path

import pytest

from tests.fakes.server_process import ServerProcess

FOREIGN = Path(__file__).parent / "foreign"

CHECKS = {
    "http_sync": (
        "health metadata config index infer-binary-binary infer-binary-json infer-json-binary infer-json-json infer-defaults compression "
        "async_infer digits classification statistics errors load-unload"
    ),
    "http_aio": "health metadata config index infer-binary infer-json concurrent statistics load-unload",
    "grpc_sync": (
        "health metadata config index infer-raw compression infer-typed async_infer stream "
        "digits classification statistics errors load-unload"
    ),
    "grpc_aio": "health metadata config index infer concurrent stream statistics load-unload",
}


@pytest.mark.parametrize("flavour", CHECKS)
def test_unmodified_client_passes_all_its_checks(flavour, server: ServerProcess, clients_python):
    address = server.http if flavour.startswith("http") else server.grpc
    command = [str(clients_python), str(FOREIGN / f"{flavour}.py"), address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{server.log()[-2000:]}"
    assert done.stdout.split() == CHECKS[flavour].split()
