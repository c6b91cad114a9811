"""tritonclient's explicit load and unload of an ensemble, with and without the models of its steps."""

import sys

import tritonclient.grpc as grpc_module
import tritonclient.http as http_module
from common_checks import Report, check_simple, expect_error, simple_inputs
from tritonclient.utils import InferenceServerException

report = Report()
http_address, grpc_address = sys.argv[1:3]


def states(client):
    index = client.get_model_repository_index()
    entries = (
        index if isinstance(index, list) else [{"name": model.name, "state": model.state, "reason": model.reason} for model in index.models]
    )
    return {entry["name"]: (entry.get("state", ""), entry.get("reason", "")) for entry in entries}


def check_control(client, module):
    def infer():
        return client.infer("simple_ensemble", simple_inputs(module))

    client.load_model("simple_ensemble")
    assert all(client.is_model_ready(name) for name in ("simple_ensemble", "nop", "add_sub"))
    check_simple(infer())

    client.unload_model("nop")
    assert states(client)["simple_ensemble"] == ("UNAVAILABLE", "step 'nop' needs model 'nop', which is not loaded")
    assert not client.is_model_ready("simple_ensemble")
    expect_error(infer, InferenceServerException, "step 'nop' needs model 'nop'")
    client.load_model("nop")
    check_simple(infer())

    client.unload_model("simple_ensemble")
    assert not client.is_model_ready("simple_ensemble")
    assert client.is_model_ready("add_sub"), "only the ensemble is unloaded"
    client.unload_model("nop")
    client.unload_model("add_sub")
    client.load_model("simple_ensemble")
    client.unload_model("simple_ensemble", unload_dependents=True)
    assert not any(client.is_model_ready(name) for name in ("simple_ensemble", "nop", "add_sub"))
    client.close()


for module, address, kind in ((http_module, http_address, "http"), (grpc_module, grpc_address, "grpc")):
    check_control(module.InferenceServerClient(address), module)
    report(kind)
report.finish()
