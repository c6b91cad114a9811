import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts its requests, shows the last IN and a histogram of all, and responds with the error of a family that the server has itself."""

    def initialize(self, args):
        requests = pb_utils.MetricFamily("sample_requests", "Requests of the sample.", pb_utils.MetricFamily.COUNTER)
        self.requests = requests.Metric(labels={"model": "sample", "kind": "a"})
        self.last = pb_utils.MetricFamily("sample_last", "The last input.", pb_utils.MetricFamily.GAUGE).Metric()
        sizes = pb_utils.MetricFamily(name="sample_sizes", description="All inputs.", kind=pb_utils.MetricFamily.HISTOGRAM)
        self.sizes = sizes.Metric(labels={"kind": "b"}, buckets=[0.5, 1, 2])

    def execute(self, requests):
        self.requests.increment(len(requests))
        for request in requests:
            value = float(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            self.sizes.observe(value)
            self.last.set(value)
        try:
            pb_utils.MetricFamily("nv_inference_count", "", pb_utils.MetricFamily.COUNTER)
            text = ""
        except pb_utils.TritonModelException as error:
            text = error.message()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("ERROR", np.array([text], dtype=object))]) for _ in requests]
