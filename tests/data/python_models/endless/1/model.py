from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Responds until the client is gone, then writes the number of responses into the file that FILE names."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            path = Path(request.inputs()[0].as_numpy()[0].decode())
            count = 0
            while not sender.is_cancelled():
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(10_000, count, np.int32))]))
                count += 1
                path.with_suffix(".sent").write_text(str(count))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            path.write_text(str(count))
