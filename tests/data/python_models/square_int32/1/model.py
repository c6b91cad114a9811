import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """As many responses as IN says, each IN, from a thread for each request."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException("enable the decoupled transaction policy")
        self.in_flight = 0
        self.lock = threading.Lock()
        self.idle = threading.Condition(self.lock)

    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            thread = threading.Thread(target=self.respond, args=(request.get_response_sender(), value), daemon=True)
            with self.lock:
                self.in_flight += 1
            thread.start()

    def respond(self, sender, value):
        for _ in range(value[0]):
            sender.send(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", np.array([value[0]], np.int32))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.lock:
            self.in_flight -= 1
            self.idle.notify_all()

    def finalize(self):
        with self.lock:
            self.idle.wait_for(lambda: self.in_flight == 0, timeout=10)
