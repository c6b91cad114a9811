import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks the model that the input MODEL_NAME names."""

    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()[0]
            inner = pb_utils.InferenceRequest(
                model_name=name.decode(),
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[pb_utils.get_input_tensor_by_name(request, each) for each in ("INPUT0", "INPUT1")],
            )
            response = inner.exec()
            if response.has_error():
                error = pb_utils.TritonError(response.error().message(), response.error().code())
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse(output_tensors=response.output_tensors()))
        return responses
