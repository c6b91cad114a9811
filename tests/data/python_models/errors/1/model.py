import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Fails as the input MODE says."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "MODE", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            mode = request.inputs()[0].as_numpy()[0, 0].decode()
            if mode == "raise":
                raise ValueError("an error of the model")
            if mode.isupper():
                error = pb_utils.TritonError(f"code {mode}", getattr(pb_utils.TritonError, mode))
                responses.append(pb_utils.InferenceResponse(error=error))
            elif mode == "shape":
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([["a", "b"]], dtype=np.object_))]))
            elif mode == "none":
                responses.append(None)
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([[f"{mode}é"]], dtype=np.object_))]))
        return responses
