import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Asks the model of the input MODEL_NAME twice at once: OUTPUT0 is of the first response, OUTPUT1 of the second."""

    async def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()[0]
            asked = [
                pb_utils.InferenceRequest(
                    model_name=name.decode(),
                    requested_output_names=[output],
                    inputs=[pb_utils.get_input_tensor_by_name(request, each) for each in ("INPUT0", "INPUT1")],
                ).async_exec()
                for output in ("OUTPUT0", "OUTPUT1")
            ]
            found = await asyncio.gather(*asked)
            for response in found:
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
            outputs = [pb_utils.get_output_tensor_by_name(each, name) for each, name in zip(found, ("OUTPUT0", "OUTPUT1"), strict=True)]
            responses.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return responses
