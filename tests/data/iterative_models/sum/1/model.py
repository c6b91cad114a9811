import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The sum of 1 to COUNT, one addition in each execution. It remembers nothing: the server keeps its states."""

    def execute(self, requests):
        return [self._step(request) for request in requests]

    def _step(self, request):
        count, left, total = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]) for name in ("COUNT", "left_in", "sum_in")
        )
        left = (count if not total else left) - 1
        total += left + 1
        if not left:
            return pb_utils.InferenceResponse([_tensor("SUM", total)])
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return pb_utils.InferenceResponse([_tensor("left_out", left), _tensor("sum_out", total)])


def _tensor(name, value):
    return pb_utils.Tensor(name, np.array([[value]], np.int32))
