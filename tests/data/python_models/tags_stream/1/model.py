import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """As many responses as IN says, each with its place as a parameter."""

    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            sender = request.get_response_sender()
            for index in range(tensor.as_numpy()[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())], parameters={"index": index}))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
