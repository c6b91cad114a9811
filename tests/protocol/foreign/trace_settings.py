"""Trace settings by every flavour of tritonclient."""

import sys

import numpy as np
from client_flavours import Flavour
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)
MODEL = "echo_int32"


def settings(answer):
    """Everything but the file, each value as a list."""
    if client.is_http:
        found = {name: value if isinstance(value, list) else [value] for name, value in answer.items()}
    else:
        found = {name: value["value"] for name, value in answer["settings"].items()}
    assert found.pop("trace_file")[0].endswith("trace.json")
    return found


initial = {"trace_level": ["OFF"], "trace_rate": ["1000"], "trace_count": ["-1"], "log_frequency": ["0"], "trace_mode": ["triton"]}
assert settings(client("get_trace_settings")) == initial
assert settings(client("get_trace_settings", model_name=MODEL)) == initial
report("read")

changed = settings(
    client("update_trace_settings", model_name=MODEL, settings={"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1"})
)
assert changed == {**initial, "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["1"]}, changed
assert settings(client("get_trace_settings")) == initial
tensor = client.module.InferInput("INPUT", [1, 3], "INT32")
tensor.set_data_from_numpy(np.array([[7, 8, 9]], np.int32))
client("infer", MODEL, [tensor], request_id=flavour)
report("model")

client("update_trace_settings", settings={"trace_count": "5", "log_frequency": "2"})
assert settings(client("get_trace_settings", model_name=MODEL)) == {**changed, "trace_count": ["5"], "log_frequency": ["2"]}
client("update_trace_settings", settings={"trace_count": None, "log_frequency": None})
client("update_trace_settings", model_name=MODEL, settings={"trace_level": None, "trace_rate": None})
assert settings(client("get_trace_settings", model_name=MODEL)) == initial
report("clear")

for given, text in (
    ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
    ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
):
    expect_error(lambda given=given: client("update_trace_settings", settings=given), InferenceServerException, text)
expect_error(lambda: client("get_trace_settings", model_name="absent"), InferenceServerException, "Request for unknown model : absent")
assert settings(client("get_trace_settings")) == initial
report("refusals")
client.close()
report.finish()
