"""A backend that returns its inputs: the living example of the plug-in contract, and a model to test clients and load against.

What a backend needs is all here: a `Backend` that names itself, inspects, checks and loads, and an `Instance` that runs batches. One line
in the entry-point group `stoker.backends` makes the server find it, and the conformance tests run over every backend found there.

config.pbtxt says everything: with `backend: "identity"` the version folder may be empty, or hold any files. Outputs are the inputs in the
same order, of the same datatypes and dims. Parameters:

    execute_delay_ms   how long each batch takes, in milliseconds; fractions are fine
    fail_on            a number: a batch with that value anywhere in a numeric input fails, so that error handling can be rehearsed
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from stoker.backends.api.backend import Arrays, Backend, Instance, LoadRequest
from stoker.backends.api.candidate import Candidate, Violation, parameter_path, reject
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts, ModelSignature

MAX_DELAY_MS = 3_600_000.0


class IdentityBackend(Backend):
    """Returns its inputs. Its models need no file; `model.identity` chooses it where config.pbtxt names no backend."""

    name = "identity"
    platforms = ("identity",)
    default_model_filename = "model.identity"
    needs_model_file = False
    is_for_tests = True
    parameter_keys = frozenset({"execute_delay_ms", "fail_on"})

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        return ModelFacts(inputs=None, outputs=None, notes=("outputs repeat the inputs in their order",))

    def check(self, candidate: Candidate) -> Iterator[Violation]:
        delay = _number(candidate.parameters, "execute_delay_ms")
        if delay is None or not 0.0 <= delay <= MAX_DELAY_MS:
            yield _bad_parameter(candidate.parameters, "execute_delay_ms", f"a number of milliseconds from 0 to {MAX_DELAY_MS:.0f}")
        if _number(candidate.parameters, "fail_on") is None:
            yield _bad_parameter(candidate.parameters, "fail_on", "a number")
        if candidate.signature is not None:
            yield from _pair_violations(candidate.signature)

    def load(self, request: LoadRequest) -> Instance:
        reject(self.check(request.candidate(self.inspect(request.files, request.model_filename))))
        delay_ms = _number(request.parameters, "execute_delay_ms") or 0.0
        fail_on = _number(request.parameters, "fail_on") if "fail_on" in request.parameters else None
        return IdentityInstance(request.signature, delay_s=delay_ms / 1000, fail_on=fail_on)


class IdentityInstance(Instance):
    """Copies inputs to outputs. Confined to: the one worker that owns it."""

    def __init__(
        self, signature: ModelSignature, *, delay_s: float = 0.0, fail_on: float | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`sleep` waits out the delay; a test gives its own."""
        self._source = {output.name: source.name for source, output in zip(signature.inputs, signature.outputs, strict=True)}
        self._delay_s = delay_s
        self.only_computes = delay_s <= 0
        self._fail_on = fail_on
        self._sleep = sleep

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        if self._delay_s > 0:
            self._sleep(self._delay_s)
        if self._fail_on is not None:
            self._reject(inputs, self._fail_on)
        # A copy, never the array itself: inputs are the server's buffers, and hold the next batch as soon as this call returns.
        return {name: inputs[self._source[name]].copy() for name in output_names}

    @staticmethod
    def _reject(inputs: Arrays, value: float) -> None:
        for name, array in inputs.items():
            if array.dtype != np.object_ and bool((array == value).any()):
                raise BackendFailed(f"input '{name}' holds {value:g}, which this model is configured to fail on")


def _pair_violations(signature: ModelSignature) -> Iterator[Violation]:
    if len(signature.inputs) != len(signature.outputs):
        counts = f"{len(signature.inputs)} inputs and {len(signature.outputs)} outputs"
        yield Violation("output", f"{counts}; an identity model has as many of each")
    for index, (source, output) in enumerate(zip(signature.inputs, signature.outputs, strict=False)):
        if source.optional:
            yield Violation(f"input[{index}].optional", f"input '{source.name}' is optional, but output '{output.name}' is made of it")
        if source.datatype is not output.datatype or source.model_dims != output.model_dims:
            yield Violation(
                f"output[{index}].{'dims' if source.datatype is output.datatype else 'data_type'}",
                f"output '{output.name}' is {output.datatype.config_name} {list(output.model_dims)}, but the input of its place, "
                f"'{source.name}', is {source.datatype.config_name} {list(source.model_dims)}",
            )


def _number(parameters: Mapping[str, str], key: str) -> float | None:
    """The value of `key`, 0 where it is not written; None if it is no number."""
    try:
        value = float(parameters.get(key, "0"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bad_parameter(parameters: Mapping[str, str], key: str, allowed: str) -> Violation:
    return Violation(parameter_path(key), f"takes {allowed}, not '{parameters[key][:40]}'")
