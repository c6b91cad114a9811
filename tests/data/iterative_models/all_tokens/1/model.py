import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Generates COUNT tokens, one in each execution: a decoupled model sends each, another one returns all with the last.

    It writes the request ids of each batch as a line of the file `batches` in FOLDER, and waits while there is a file `hold` beside it.
    At the token CRASH of a request, its process ends. A response has its token REPEAT times.
    """

    def initialize(self, args):
        self.tokens = {}
        self.is_decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests):
        folder = Path(_value(requests[0], "FOLDER").decode())
        with (folder / "batches").open("a") as file:
            file.write(" ".join(request.request_id() for request in requests) + "\n")
        while (folder / "hold").exists():
            time.sleep(0.01)
        responses = [self._step(request) for request in requests]
        return None if self.is_decoupled else responses

    def _step(self, request):
        sequence = request.correlation_id()
        is_start = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        assert is_start == bool(_value(request, "START")) == (sequence not in self.tokens)
        assert sequence == _value(request, "ID")
        assert not _value(request, "END")
        if request.is_cancelled():
            self.tokens.pop(sequence, None)
            if self.is_decoupled:
                request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return None
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED))
        tokens = self.tokens.setdefault(sequence, [])
        if len(tokens) == _value(request, "CRASH"):
            os.kill(os.getpid(), signal.SIGKILL)
        tokens.append(len(tokens))
        is_last = len(tokens) == _value(request, "COUNT")
        if is_last:
            del self.tokens[sequence]
        else:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        sent = tokens[-1:] * _repeat(request) if self.is_decoupled else tokens
        response = pb_utils.InferenceResponse([pb_utils.Tensor("TOKENS", np.array([sent], np.int32))])
        if not self.is_decoupled:
            return response if is_last else None
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        request.get_response_sender().send(response, flags=flags)
        return None


def _value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]


def _repeat(request):
    tensor = pb_utils.get_input_tensor_by_name(request, "REPEAT")
    return 1 if tensor is None else int(tensor.as_numpy()[0, 0])
