"""`FakeBackend` and `FakeInstance`: they respond, fail and wait as a test says, and record their calls.

The test sets plain attributes and closes `Gate`s, so that it holds a load or a batch at a chosen point without sleeping.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.backends.api.backend import Arrays, Backend, Instance, LoadRequest
from stoker.backends.api.errors import ServingError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import FileTensor, ModelFacts, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType

#: How long the fakes wait for the test, in seconds: a hung test ends as a failure that names the place.
PATIENCE_S = 10.0

Compute = Callable[[Arrays, Sequence[str]], Arrays]


class Gate:
    """A gate that a test closes and opens, and at which it can wait for a thread to arrive."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._arrivals = threading.Semaphore(0)

    def close(self) -> None:
        """Threads wait at the gate from now on."""
        self._open.clear()

    def open(self) -> None:
        """Threads pass from now on, also those that wait."""
        self._open.set()

    def wait_arrival(self) -> None:
        """Blocks until one more thread has reached the gate, open or closed.

        Raises:
            TimeoutError: none did within `PATIENCE_S`.
        """
        if not self._arrivals.acquire(timeout=PATIENCE_S):
            raise TimeoutError("no thread reached the gate")

    def pass_through(self) -> None:
        """Passes the gate; waits while it is closed.

        Raises:
            TimeoutError: the test did not open it within `PATIENCE_S`.
        """
        self._arrivals.release()
        if not self._open.wait(PATIENCE_S):
            raise TimeoutError("the test did not open the gate")


@dataclass(frozen=True, slots=True)
class Call:
    """One `execute`: copies of its inputs, and the names of the outputs."""

    inputs: Mapping[str, np.ndarray]
    output_names: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return int(next(iter(self.inputs.values())).shape[0])


def echo(signature: ModelSignature) -> Compute:
    """Each output is the input of the same place (the last input, where there are more outputs), cast to the output's type."""

    def compute(inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        arrays = [inputs[spec.name] for spec in signature.inputs if spec.name in inputs]
        outputs = {}
        for index, spec in enumerate(signature.outputs):
            if spec.name in output_names:
                outputs[spec.name] = arrays[min(index, len(arrays) - 1)].astype(spec.datatype.numpy, copy=True)
        return outputs

    return compute


class FakeInstance(Instance):
    """Runs `compute` (default: `echo`) and records the calls.

    Attributes:
        gate: Every `execute` passes through it.
        failures: Errors to raise, one for each coming `execute`; None lets that call through.
        fail_if: Called at every `execute` with its inputs; an exception that it returns is raised.
        calls: Calls of `execute` so far.
        closed: Whether `close` was called.
    """

    def __init__(
        self,
        signature: ModelSignature,
        *,
        compute: Compute | None = None,
        static_batch_size: int | None = None,
        fail_if: Callable[[Arrays], Exception | None] | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Makes a backend for a model with `signature`; the other arguments are the attributes."""
        self.signature = signature
        self.static_batch_size = static_batch_size
        self.gate = gate or Gate()
        self.failures: list[Exception | None] = []
        self.fail_if = fail_if
        self.calls: list[Call] = []
        self.closed = False
        self.threads: set[int] = set()
        self._compute = compute or echo(signature)

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        assert not self.closed, "execute after close"
        self.threads.add(threading.get_ident())
        self.calls.append(Call({name: array.copy() for name, array in inputs.items()}, tuple(output_names)))
        self.gate.pass_through()
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure
        if self.fail_if is not None and (failure := self.fail_if(inputs)) is not None:
            raise failure
        return self._compute(inputs, output_names)

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class FakeBackend(Backend):
    """Loads `FakeInstance`s.

    Attributes:
        facts: What `inspect` returns.
        inspect_errors, load_errors: By (model name, version) for loads, by file content for inspections: what to raise instead.
        load_gate: Every `load` passes through it.
        make: Builds the instance of a load; replace it for other behaviour.
        requests: Load requests so far.
        instances: What they built, in order.
    """

    name = "fake"
    platforms = ("fake_platform",)
    aliases = ("fake_alias",)
    default_model_filename = "model.fake"
    parameter_keys = frozenset({"fake_parameter"})

    def __init__(self, facts: ModelFacts | None = None) -> None:
        self.facts = facts or ModelFacts(inputs=None, outputs=None)
        self.inspect_errors: dict[bytes, ServingError] = {}
        self.load_errors: dict[tuple[str, int], Exception] = {}
        self.load_gate = Gate()
        self.make: Callable[[LoadRequest], FakeInstance] = lambda request: FakeInstance(request.signature)
        self.requests: list[LoadRequest] = []
        self.instances: list[FakeInstance] = []

    def inspect(self, files: ModelFiles, model_filename: str) -> ModelFacts:
        content = files.read(model_filename)
        if content in self.inspect_errors:
            raise self.inspect_errors[content]
        return self.facts

    def load(self, request: LoadRequest) -> Instance:
        self.requests.append(request)
        self.load_gate.pass_through()
        error = self.load_errors.get((request.model_name, request.version))
        if error is not None:
            raise error
        instance = self.make(request)
        self.instances.append(instance)
        return instance


def fake_signature(*dims: int, max_batch_size: int = 8, datatype: DataType = DataType.FP32) -> ModelSignature:
    """One input `x` and one output `y`, both of `dims`."""
    return ModelSignature((TensorSpec("x", datatype, dims),), (TensorSpec("y", datatype, dims),), max_batch_size)


def fake_facts(*dims: int, datatype: DataType = DataType.FP32) -> ModelFacts:
    """The signature of a file with an open batch dimension, one input `x` and one output `y` of `dims`."""
    shape = (-1, *dims)
    return ModelFacts(inputs=(FileTensor("x", datatype, shape),), outputs=(FileTensor("y", datatype, shape),))
