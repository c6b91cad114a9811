import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of a sequence's inputs, kept by its correlation id."""

    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            sequence, flags = request.correlation_id(), request.flags()
            starts = bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
            assert starts == bool(pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0, 0])
            if starts:
                self.sums[sequence] = 0
            self.sums[sequence] += int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()[0, 0])
            output = pb_utils.Tensor("OUTPUT", np.array([[self.sums[sequence]]], np.int32))
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[sequence]
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
