"""A thousand calls of tritonclient, each few of them over new connections; prints how many failed, and a line when the first is done."""

import sys

import numpy as np
import tritonclient.grpc
import tritonclient.http

grpc_address, http_address, ca = sys.argv[1:]
CALLS, CALLS_A_CLIENT = 1000, 20
failed = 0
for first in range(0, CALLS, CALLS_A_CLIENT):
    if first // CALLS_A_CLIENT % 2:
        module = tritonclient.grpc
        client = module.InferenceServerClient(grpc_address, ssl=True, root_certificates=ca)
    else:
        module = tritonclient.http
        client = module.InferenceServerClient(http_address, ssl=True, ssl_options={"ca_certs": ca})
    inputs = [module.InferInput(f"INPUT{each}", [1, 16], "INT32") for each in (0, 1)]
    for tensor in inputs:
        tensor.set_data_from_numpy(np.full((1, 16), 3, np.int32))
    for _ in range(CALLS_A_CLIENT):
        try:
            assert client.infer("simple", inputs).as_numpy("OUTPUT0")[0][0] == 6
        except Exception as error:
            print(repr(error), file=sys.stderr)
            failed += 1
    client.close()
    print(first + CALLS_A_CLIENT, flush=True)
print(f"{failed} of {CALLS} failed", flush=True)
