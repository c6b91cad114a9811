import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Responds with parameters: its own, and with MODEL_NAME those of the response of that model."""

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME")
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        parameters = {"text": "é", "flag": True, "count": 1 << 40, "share": 0.5}
        if name is not None:
            tensors = [pb_utils.Tensor("IN", value)]
            inner = pb_utils.InferenceRequest(model_name=name.as_numpy()[0].decode(), requested_output_names=["OUT"], inputs=tensors)
            parameters = {f"inner_{key}": each for key, each in json.loads(inner.exec().parameters()).items()}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.copy(value))], parameters=parameters)
