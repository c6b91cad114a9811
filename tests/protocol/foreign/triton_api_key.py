"""tritonclient against a server that requires an API key: `triton_api_key.py GRPC HTTP KEY`; prints a line for each call."""

import sys

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

grpc_url, http_url, key = sys.argv[1:]
for name, library, url in (("grpc", over_grpc, grpc_url), ("http", over_http, http_url)):
    client = library.InferenceServerClient(url)
    tensors = [library.InferInput(each, [1, 16], "INT32") for each in ("INPUT0", "INPUT1")]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((1, 16), np.int32))
    print(name, "live", client.is_server_live(), client.is_server_ready(), client.is_model_ready("simple"))
    for word, headers in (("none", None), ("wrong", {"authorization": "Bearer wrong"}), ("right", {"authorization": f"Bearer {key}"})):
        try:
            result = client.infer("simple", tensors, headers=headers)
            print(name, word, int(result.as_numpy("OUTPUT0")[0, 0]))
        except InferenceServerException as error:
            print(name, word, error.status(), error.message())
    client.close()
