"""A backend that returns its inputs: the living example of the plug-in contract, and a model to test clients and load against.

What a backend needs is all here: a `Backend` that names itself, inspects and loads, and an `Instance` that runs batches. One line in the
entry-point group `stoker.backends` makes the server find it, and the conformance tests run over every backend found there.

The version folder holds a file `model.identity`, whose content is of no interest; config.pbtxt says everything. Outputs are the inputs
in the same order, of the same datatypes and dims. Parameters:

    execute_delay_ms   how long each batch takes, in milliseconds; fractions are fine
    fail_on            a number: a batch with that value anywhere in a numeric input fails, so that error handling can be rehearsed
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from backends.api.backend import Arrays, Backend, Instance, LoadRequest
from backends.api.errors import BackendFailed, ModelLoadError
from backends.api.files import ModelFiles
from backends.api.model import ModelFacts, ModelSignature

MAX_DELAY_MS = 3_600_000.0


class IdentityBackend(Backend):
    """Serves `model.identity`."""

    name = "identity"
    platforms = ("identity",)
    default_model_filename = "model.identity"
    parameter_keys = frozenset({"execute_delay_ms", "fail_on"})

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        files.path(model_filename)
        return ModelFacts(inputs=None, outputs=None, notes=("outputs repeat the inputs in their order",))

    def load(self, request: LoadRequest) -> Instance:
        self.inspect(request.files, request.model_filename)
        _check_pairs(request.signature)
        delay_ms = _number(request.parameters, "execute_delay_ms") or 0.0
        if not 0.0 <= delay_ms <= MAX_DELAY_MS:
            raise ModelLoadError(f"parameter 'execute_delay_ms' is {delay_ms:g}, allowed: 0 to {MAX_DELAY_MS:g}")
        return IdentityInstance(request.signature, delay_s=delay_ms / 1000, fail_on=_number(request.parameters, "fail_on"))


class IdentityInstance(Instance):
    """Copies inputs to outputs. Confined to: the one worker that owns it."""

    def __init__(
        self, signature: ModelSignature, *, delay_s: float = 0.0, fail_on: float | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`sleep` waits out the delay; a test gives its own."""
        self._source = {output.name: source.name for source, output in zip(signature.inputs, signature.outputs, strict=True)}
        self._delay_s = delay_s
        self._fail_on = fail_on
        self._sleep = sleep

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        if self._delay_s > 0:
            self._sleep(self._delay_s)
        if self._fail_on is not None:
            self._refuse(inputs, self._fail_on)
        # A copy, never the array itself: inputs are the server's buffers, and hold the next batch as soon as this call returns.
        return {name: inputs[self._source[name]].copy() for name in output_names}

    @staticmethod
    def _refuse(inputs: Arrays, value: float) -> None:
        for name, array in inputs.items():
            if array.dtype != np.object_ and bool((array == value).any()):
                raise BackendFailed(f"input '{name}' holds {value:g}, which this model was told to fail on")


def _check_pairs(signature: ModelSignature) -> None:
    if len(signature.inputs) != len(signature.outputs):
        raise ModelLoadError(f"{len(signature.inputs)} inputs and {len(signature.outputs)} outputs; an identity model has as many of each")
    for source, output in zip(signature.inputs, signature.outputs, strict=True):
        if source.optional:
            raise ModelLoadError(f"input '{source.name}' is optional, but output '{output.name}' is made of it")
        if source.datatype is not output.datatype or source.model_dims != output.model_dims:
            raise ModelLoadError(
                f"output '{output.name}' is {output.datatype.config_name} {list(output.model_dims)}, but the input of its place, "
                f"'{source.name}', is {source.datatype.config_name} {list(source.model_dims)}"
            )


def _number(parameters: Mapping[str, str], key: str) -> float | None:
    if key not in parameters:
        return None
    try:
        value = float(parameters[key])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ModelLoadError(f"parameter '{key}' is '{parameters[key]}', expected a number")
    return value
