import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of the responses to two requests to the decoupled model square_int32."""

    async def execute(self, requests):
        if len(requests) != 1:
            raise pb_utils.TritonModelException(f"unsupported batch size {len(requests)}")
        value = pb_utils.get_input_tensor_by_name(requests[0], "IN")
        waiting = [
            pb_utils.InferenceRequest(model_name="square_int32", inputs=[value], requested_output_names=["OUT"]).async_exec(decoupled=True)
            for _ in range(2)
        ]
        total = np.array([0])
        for responses in await asyncio.gather(*waiting):
            for response in responses:
                if response.has_error():
                    raise pb_utils.TritonModelException(response.error().message())
                total += pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()
        return [pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("SUM", total)])]
