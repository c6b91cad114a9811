"""tritonclient sends a request with each trace context on the command line, and prints the context that the model responds with."""

import sys

import numpy as np
import tritonclient.http as http

client = http.InferenceServerClient(sys.argv[1])
inputs = []
for name in ("INPUT0", "INPUT1"):
    inputs.append(http.InferInput(name, [4], "FP32"))
    inputs[-1].set_data_from_numpy(np.ones(4, np.float32))
for parent in sys.argv[2:]:
    result = client.infer("traced", inputs, headers={"traceparent": parent} if parent else {})
    assert result.as_numpy("OUTPUT0").tolist() == [2] * 4
    print(result.as_numpy("CONTEXT")[0].decode())
