import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Loads or unloads a model, or looks it up. FILES: names and contents in turn."""

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        def texts(name):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return [] if tensor is None else tensor.as_numpy().tolist()

        (action,), (model,) = texts("ACTION"), texts("MODEL")
        name, _, version = model.decode().partition(":")
        if action == b"load":
            config = b"".join(texts("CONFIG")).decode()
            files = texts("FILES")
            given = {key.decode(): each for key, each in zip(files[::2], files[1::2], strict=True)}
            pb_utils.load_model(name, config=config, files=given or None)
        elif action == b"unload":
            pb_utils.unload_model(name)
        ready = pb_utils.is_model_ready(model_name=name, model_version=version)
        return pb_utils.InferenceResponse([pb_utils.Tensor("READY", np.array([ready]))])
