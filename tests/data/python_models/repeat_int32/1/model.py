import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One response for each element of IN, each after its DELAY, while execute returns after WAIT; milliseconds."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.respond, args=(request,), daemon=True).start()
            time.sleep(pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()[0] / 1000)

    @staticmethod
    def respond(request):
        sender = request.get_response_sender()
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        for index in range(len(values)):
            time.sleep(delays[index] / 1000)
            outputs = [pb_utils.Tensor("OUT", values[index : index + 1]), pb_utils.Tensor("IDX", np.array([index], np.uint32))]
            sender.send(pb_utils.InferenceResponse(output_tensors=outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
