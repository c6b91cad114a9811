"""tritonclient over each of the targets given, which need not be ports."""

import sys

import numpy as np
import tritonclient.grpc as grpcclient

for target in sys.argv[1:]:
    client = grpcclient.InferenceServerClient(target)
    inputs = [grpcclient.InferInput(f"INPUT{each}", [1, 16], "INT32") for each in (0, 1)]
    for tensor in inputs:
        tensor.set_data_from_numpy(np.full((1, 16), 3, np.int32))
    assert client.infer("simple", inputs).as_numpy("OUTPUT0").tolist() == [[6] * 16]
    client.close()
    print(target)
