import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts its requests, shows the last IN, and responds with the error of a family that the server has itself."""

    def initialize(self, args):
        requests = pb_utils.MetricFamily("sample_requests", "Requests of the sample.", pb_utils.MetricFamily.COUNTER)
        self.requests = requests.Metric(labels={"model": "sample", "kind": "a"})
        self.last = pb_utils.MetricFamily("sample_last", "The last input.", pb_utils.MetricFamily.GAUGE).Metric()

    def execute(self, requests):
        self.requests.increment(len(requests))
        for request in requests:
            self.last.set(float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0]))
        try:
            pb_utils.MetricFamily("nv_inference_count", "", pb_utils.MetricFamily.COUNTER)
            text = ""
        except pb_utils.TritonModelException as error:
            text = error.message()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ERROR", np.array([text], dtype=object))]) for _ in requests]
