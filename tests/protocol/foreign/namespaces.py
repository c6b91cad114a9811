"""tritonclient against a server with model namespaces: two repositories have a model `m`, and only the first has `plus`."""

import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

AMBIGUOUS = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity"
AT = {grpc: sys.argv[1], http: sys.argv[2]}


def fails(call, *arguments):
    try:
        call(*arguments)
    except InferenceServerException as error:
        return error.message()
    raise AssertionError("no error")


def check(module, address):
    client = module.InferenceServerClient(address)
    assert client.is_server_ready()
    index = client.get_model_repository_index()
    entries = index if module is http else [{"name": each.name, "state": each.state} for each in index.models]
    names = sorted(entry["name"] for entry in entries if entry["state"] == "READY")
    assert names == ["chosen", "m", "m", "own", "own_two", "plus", "unique"], names

    def tensor(name):
        given = module.InferInput(name, [1], "FP32")
        given.set_data_from_numpy(np.array([3], np.float32))
        return given

    def result(model):
        return client.infer(model, [tensor("IN")]).as_numpy("OUT").tolist()

    # The model m of the first repository adds 1, that of the second 10.
    assert result("own") == [4]
    assert result("own_two") == [13]
    assert result("chosen") == [13]
    assert result("unique") == [103]
    assert result("plus") == [103]
    for call in (client.infer, client.load_model, client.unload_model):
        message = fails(call, "m", [tensor("IN")]) if call == client.infer else fails(call, "m")
        assert AMBIGUOUS in message, message
        assert "model repositories 1 ('first') and 2 ('second')" in message, message
    assert AMBIGUOUS in fails(client.get_model_metadata, "m")
    assert AMBIGUOUS in fails(client.get_trace_settings, "m")
    assert not client.is_model_ready("m")
    client.unload_model("plus")
    assert not client.is_model_ready("plus")
    client.load_model("plus")
    assert result("plus") == [103]
    statistics = client.get_inference_statistics()
    every = statistics["model_stats"] if module is http else statistics.model_stats
    counted = [each["name"] if module is http else each.name for each in every]
    assert sorted(counted) == names, counted


for module, address in AT.items():
    check(module, address)
