"""The calls to every flavour of tritonclient. Runs in the foreign clients' environment: imports nothing of this project."""

import sys

import numpy as np

A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.full((2, 16), 3, dtype=np.int32)
IMAGES = np.linspace(0, 16, 3 * 64, dtype=np.float32).reshape(3, 8, 8)


def simple_inputs(module, binary=None, a=A, b=B):
    inputs = [module.InferInput("INPUT0", list(a.shape), "INT32"), module.InferInput("INPUT1", list(b.shape), "INT32")]
    for tensor, data in zip(inputs, (a, b), strict=True):
        if binary is None:
            tensor.set_data_from_numpy(data)
        else:
            tensor.set_data_from_numpy(data, binary_data=binary)
    return inputs


def check_simple(result):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


def check_digits(scores):
    assert scores.shape == (3, 10), scores.shape
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-4)


def check_metadata(metadata):
    assert metadata["name"] == "simple"
    assert metadata["versions"] == ["1"]
    assert metadata["platform"] == "onnxruntime_onnx"
    shapes = {
        tensor["name"]: ([int(n) for n in tensor["shape"]], tensor["datatype"]) for tensor in metadata["inputs"] + metadata["outputs"]
    }
    assert shapes == {name: ([-1, 16], "INT32") for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")}, shapes


def check_config(config):
    assert config["name"] == "simple"
    assert int(config["max_batch_size"]) == 8
    assert config["backend"] == "onnxruntime"
    assert [tensor["data_type"] for tensor in config["input"]] == ["TYPE_INT32"] * 2
    assert "dynamic_batching" in config


def check_index(entries):
    found = {(entry["name"], entry.get("version"), entry.get("state")) for entry in entries}
    assert ("simple", "1", "READY") in found, found
    assert ("digits", "1", "READY") in found, found


def check_statistics(stats):
    [one] = stats["model_stats"]
    assert (one["name"], one["version"]) == ("simple", "1")
    inference = one["inference_stats"]
    assert int(inference["success"]["count"]) >= 1
    assert int(inference["queue"]["count"]) >= int(inference["success"]["count"])
    assert int(one["inference_count"]) >= 2
    assert int(one["execution_count"]) >= 1
    assert int(one["last_inference"]) > 0


class Report:
    """Names of the checks that passed, printed at the end."""

    def __init__(self):
        self.passed = []

    def __call__(self, name):
        self.passed.append(name)

    def finish(self):
        sys.stdout.write(" ".join(self.passed) + "\n")


def expect_error(call, exception, *fragments):
    try:
        call()
    except exception as error:
        text = str(error)
    else:
        raise AssertionError(f"expected {exception.__name__} with {fragments}")
    for fragment in fragments:
        assert fragment in text, f"'{fragment}' is not in '{text}'"
