"""A backend that returns one response for each element of the input: to try streaming clients with, and as an example of such a backend.

It is Triton's repeat example. config.pbtxt says everything, `backend: "repeat"` and `model_transaction_policy { decoupled: true }`
included; the version folder may be empty, or hold any files:

    input   IN     any numeric type, [-1]    the values to return, one response for each element
            DELAY  UINT32 [-1]               milliseconds to wait before each response; as many as IN
            WAIT   UINT32 [1]                milliseconds that the request takes at least, all in all
    output  OUT    as IN, [1]                the element
            IDX    UINT32 [1]                its place

Parameters:

    streams    requests that one instance runs concurrently; 16 where not written
    fail_at    a place: in stead of the response of that place the request fails, so that error handling can be rehearsed
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from stoker.backends.api.backend import Arrays, Backend, Instance, LoadRequest, Parameters
from stoker.backends.api.candidate import Candidate, Violation, parameter_path, reject
from stoker.backends.api.errors import BackendFailed, InvalidRequest
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.streaming import StreamingInstance
from stoker.backends.api.tensor import DataType

MAX_WAIT_MS = 60_000
MAX_STREAMS = 256
_DEFAULT_STREAMS = 16


class RepeatBackend(Backend):
    """Returns one response for each element. Its models need no file; `model.repeat` chooses it where config.pbtxt names no backend."""

    name = "repeat"
    platforms = ("repeat",)
    default_model_filename = "model.repeat"
    needs_model_file = False
    is_for_tests = True
    parameter_keys = frozenset({"streams", "fail_at"})
    streams = True

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return ModelFacts(inputs=None, outputs=None, notes=("returns one response for each element of IN",))

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        for key, least, most in (("streams", 1, MAX_STREAMS), ("fail_at", 0, (1 << 31) - 1)):
            number = _number(candidate.parameters, key)
            if number is not None and not least <= number <= most:
                shown = candidate.parameters[key][:40]
                yield Violation(parameter_path(key), f"takes a whole number from {least} to {most}, not '{shown}'")
        if candidate.signature is not None:
            yield from _signature_violations(candidate.signature)

    def load(self, request: LoadRequest) -> Instance:
        reject(self.check(request.candidate(self.inspect(request.files, request.model_filename))))
        streams = _number(request.parameters, "streams") or _DEFAULT_STREAMS
        return RepeatInstance(streams=streams, fail_at=_number(request.parameters, "fail_at"))


class RepeatInstance(StreamingInstance):
    """Returns the elements one by one. Holds no state, so any number of threads may call it."""

    def __init__(self, *, streams: int = 1, fail_at: int | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """`sleep` waits out the delays, in seconds; a test gives its own."""
        self.pipeline_depth = streams
        self._fail_at = fail_at
        self._sleep = sleep

    def respond(self, inputs: Arrays, output_names: Sequence[str], parameters: Parameters) -> Iterator[Arrays]:
        values = inputs["IN"].reshape(-1)
        delays_ms: list[int] = inputs["DELAY"].reshape(-1).tolist() if "DELAY" in inputs else [0] * values.size
        wait_ms: int = int(inputs["WAIT"].reshape(-1)[0]) if "WAIT" in inputs else 0
        if len(delays_ms) != values.size:
            raise InvalidRequest(f"input 'DELAY' has {len(delays_ms)} elements and 'IN' {values.size}; expected as many")
        if max([wait_ms, *delays_ms]) > MAX_WAIT_MS:
            raise InvalidRequest(f"inputs 'DELAY' and 'WAIT' take at most {MAX_WAIT_MS} milliseconds")
        lead = (1,) * (inputs["IN"].ndim - 1)
        for index, delay_ms in enumerate(delays_ms):
            if delay_ms:
                self._sleep(delay_ms / 1000)
            if index == self._fail_at:
                raise BackendFailed(f"this model is configured to fail at response {index}")
            number = np.full((*lead, 1), index, dtype=np.uint32)
            yield {"OUT": values[index : index + 1].reshape(*lead, 1).copy(), "IDX": number}
        remaining_ms = wait_ms - sum(delays_ms)
        if remaining_ms > 0:
            self._sleep(remaining_ms / 1000)


def _signature_violations(signature: ModelSignature) -> Iterator[Violation]:
    if signature.max_batch_size > 1:
        yield Violation("max_batch_size", f"takes 0 or 1, not {signature.max_batch_size}: a request is a stream of its own")
    values = signature.input("IN")
    if values is None or values.datatype is DataType.BYTES:
        yield Violation("input", "needs an input 'IN' of a numeric type")
        return
    if len(values.dims) != 1:
        yield Violation("input", f"'IN' takes one dimension, not {list(values.dims)}")
    for index, spec in enumerate(signature.inputs):
        if spec.name not in ("IN", "DELAY", "WAIT"):
            yield Violation(f"input[{index}].name", f"'{spec.name}' is none of IN, DELAY, WAIT")
        elif spec.name != "IN":
            wanted = (1,) if spec.name == "WAIT" else values.dims
            yield from _spec_violations(f"input[{index}]", spec, DataType.UINT32, wanted)
    for index, spec in enumerate(signature.outputs):
        if spec.name not in ("OUT", "IDX"):
            yield Violation(f"output[{index}].name", f"'{spec.name}' is none of OUT, IDX")
        else:
            yield from _spec_violations(f"output[{index}]", spec, values.datatype if spec.name == "OUT" else DataType.UINT32, (1,))


def _spec_violations(at: str, spec: TensorSpec, datatype: DataType, dims: tuple[int, ...]) -> Iterator[Violation]:
    if spec.datatype is not datatype:
        yield Violation(f"{at}.data_type", f"'{spec.name}' takes {datatype.config_name}, not {spec.datatype.config_name}")
    if spec.model_dims != dims:
        yield Violation(f"{at}.dims", f"'{spec.name}' takes {list(dims)}, not {list(spec.model_dims)}")


def _number(parameters: Mapping[str, str], key: str) -> int | None:
    """The value of `key`; None where it is not written, -1 where it is no whole number."""
    if key not in parameters:
        return None
    text = parameters[key]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
