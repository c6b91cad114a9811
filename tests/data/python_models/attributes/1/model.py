import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Returns what it knows of the request and of itself as JSON."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [-1], "optional": True})
        config.add_input({"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        self.args = {name: args[name] for name in ("model_name", "model_version", "model_instance_kind", "model_instance_name")}
        self.logger = pb_utils.Logger

    def execute(self, requests):
        self.logger.log_info("a line of the model")
        responses = []
        for request in requests:
            found = {
                **self.args,
                "id": request.request_id(),
                "parameters": json.loads(request.parameters()),
                "priority": request.priority(),
                "timeout": request.timeout(),
                "inputs": [tensor.name() for tensor in request.inputs()],
                "wanted": request.requested_output_names(),
                "file": __file__.rpartition("/")[2],
            }
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(found)], dtype=np.object_))]))
        return responses
