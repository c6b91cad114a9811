"""A server with restricted APIs, as every flavour of tritonclient uses it: with the key in its headers, and without."""

import sys

import numpy as np
from client_flavours import Flavour
from common_checks import Report, expect_error
from tritonclient.utils import InferenceServerException

flavour, address = sys.argv[1:]
report, client = Report(), Flavour(flavour, address)
NAME = "infer-key" if client.is_http else "triton-grpc-protocol-infer-key"
WORD = "API" if client.is_http else "protocol"
tensor = client.module.InferInput("INPUT", [1, 2], "FP32")
tensor.set_data_from_numpy(np.ones([1, 2], np.float32))

for headers in (None, {NAME: "wrong"}, {"infer-kez": "s3cret"}):
    expect_error(
        lambda headers=headers: client("infer", "echo_fp32", [tensor], headers=headers),
        InferenceServerException,
        f"This {WORD} is restricted, expecting header '{NAME}'",
    )
    expect_error(lambda headers=headers: client("get_model_repository_index", headers=headers), InferenceServerException, "restricted")
report("closed")
client("infer", "echo_fp32", [tensor], headers={NAME: "s3cret"})
client("get_model_repository_index", headers={NAME: "s3cret"})
assert client("is_server_live")
assert client("get_server_metadata")["name"]
report("open")
client.close()
report.finish()
