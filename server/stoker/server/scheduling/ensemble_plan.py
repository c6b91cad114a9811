"""`EnsemblePlan`: the steps that a request of an ensemble runs, in the form in which they are run. Pure.

A request that asks for some of the outputs runs only the steps that they need, as in Triton.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from stoker.backends.api.backend import ResponseSink
from stoker.backends.api.errors import BackendFailed, InvalidRequest, Unavailable
from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.server.core.ensemble import Ensemble
from stoker.server.core.request import AccessNote, Array, Done, InferRequest, InFlight
from stoker.server.core.trace import RequestTrace


class StepScheduler(Protocol):
    """The scheduler of a step's model."""

    def submit(self, request: InferRequest, done: Done) -> InFlight:
        """As `Scheduler.submit`."""


class StepServable(Protocol):
    """The loaded version that a step runs on. A request that it accepts keeps it loaded."""

    @property
    def version(self) -> int:
        """The version number."""

    @property
    def signature(self) -> ModelSignature:
        """Its signature."""

    @property
    def scheduler(self) -> StepScheduler:
        """Its scheduler."""


#: Finds the version that serves (model, version); version None: the newest one. Raises a ServingError if there is none.
Resolve = Callable[[str, int | None], Any]


class StepNote(AccessNote):
    """Times and trace of one step of one request.

    Attributes:
        trace: The step's part of the request's trace; None: the request is not traced.
    """

    __slots__ = ("trace",)

    def __init__(self) -> None:
        super().__init__()
        self.trace: RequestTrace | None = None


class StepInput:
    """One input of a step.

    Attributes:
        name: The model's input.
        tensor: The ensemble's tensor.
        dims: The dims without a batch dimension.
        dtype: The numpy dtype of its elements.
        is_optional: Whether the model runs without it.
    """

    __slots__ = ("dims", "dtype", "is_optional", "name", "tensor")

    def __init__(self, spec: TensorSpec, tensor: str) -> None:
        self.name = spec.name
        self.tensor = tensor
        self.dims = spec.dims
        self.dtype: np.dtype[Any] = spec.datatype.numpy
        self.is_optional = spec.optional


class PlannedStep:
    """One step of a plan. Confined to: the event loop.

    Attributes:
        index: Its position in `EnsemblePlan.steps`.
        name: Its name in texts and in step times.
        model: The model's name.
        version: The version; None: the newest ready one.
        outputs: The model's outputs that are needed, each with the ensemble's tensor.
        waits: The number of steps whose outputs it needs.
        followers: The steps that need its outputs.
        is_decoupled: Whether the model may return any number of responses.
        depth: The number of decoupled steps before it.
    """

    __slots__ = (
        "_inputs", "_is_batched", "_key", "_map", "_most_rows", "_output_names", "_resolve", "_signature", "depth", "followers", "index",
        "is_decoupled", "model", "name", "outputs", "version", "waits",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        name: str,
        model: str,
        version: int | None,
        inputs: Sequence[tuple[str, str]],
        outputs: Sequence[tuple[str, str]],
        signature: ModelSignature,
        resolve: Resolve,
        key: str,
    ) -> None:
        """`inputs` and `outputs`: the model's tensors, each with the ensemble's. `signature`: that of the model as it was checked. `key`:
        the model's.
        """
        self.index = index
        self.name = name
        self.model = model
        self.version = version
        self.outputs = tuple(outputs)
        self.waits = 0
        self.followers: list[PlannedStep] = []
        self.is_decoupled = signature.is_decoupled
        self.depth = 0
        self._map = tuple(inputs)
        self._output_names = tuple(name for name, _ in outputs)
        self._resolve = resolve
        self._key = key
        self._adopt(signature)

    def submit(
        self, request: InferRequest, tensors: dict[str, Array], note: StepNote, done: Done, responses: ResponseSink | None = None
    ) -> InFlight:
        """Runs the step for `request`, a request of the ensemble, on those of `tensors` that it takes; arrays are passed as they are.

        Args:
            request: Gives id, priority, deadline, timeout, sequence and parameters.
            tensors: The ensemble's tensors so far.
            note: Receives the times of the step.
            done: Receives its result.
            responses: Receives the responses of a decoupled step.

        Raises:
            ServingError: the model does not serve, rejects the request, or a tensor does not fit it.
        """
        servable = self._resolve(self._key, self.version)
        signature = servable.signature
        if signature is not self._signature:
            self._adopt(signature)
        inputs: dict[str, Array] = {}
        is_batched = self._is_batched
        # A batched model of an ensemble without batches takes the first dimension of its tensors as rows.
        rows = request.rows if is_batched else 1
        for given in self._inputs:
            array = tensors.get(given.tensor)
            if array is None:
                if given.is_optional:
                    continue
                raise BackendFailed(f"input '{given.name}' is missing: the tensor '{given.tensor}' was not produced")
            shape = array.shape
            dtype = array.dtype
            # numpy has one object for each plain dtype: the comparison of others is slow.
            if (shape[1:] if is_batched else shape) != given.dims or (dtype is not given.dtype and dtype != given.dtype):
                self._check_tensor(given, array)
            if is_batched:
                if not inputs:
                    rows = shape[0]
                elif shape[0] != rows:
                    raise BackendFailed(f"input '{given.name}' has {shape[0]} rows, but the other inputs have {rows}")
            inputs[given.name] = array
        if rows > self._most_rows and is_batched:
            raise InvalidRequest(f"the tensors have {rows} rows, but the model takes batches of up to {self._most_rows}")
        step_request = InferRequest(
            self.model, inputs, self._output_names, signature, self.version, request.request_id, rows, request.deadline_ns,
            request.parameters, 0, 0, None, request.priority, request.timeout_us, request.sequence, responses, None, None, note, servable,
        )  # fmt: skip
        if request.trace is not None:
            trace = note.trace = step_request.trace = request.trace.child(self.model, servable.version)
            trace.show("TENSOR_QUEUE_INPUT", inputs, signature.inputs)
        flight: InFlight = servable.scheduler.submit(step_request, done)
        return flight

    def _adopt(self, signature: ModelSignature) -> None:
        """Prepares the step for a version with `signature`.

        Raises:
            Unavailable: the tensors have other names than when the ensemble was checked; the ensemble is being checked again.
        """
        inputs: list[StepInput] = []
        for name, tensor in self._map:
            spec = signature.input(name)
            if spec is None:
                raise Unavailable(f"the version that serves now has no input '{name}'", retry_after_s=1.0)
            inputs.append(StepInput(spec, tensor))
        if any(not spec.optional and all(spec.name != name for name, _ in self._map) for spec in signature.inputs):
            raise Unavailable("the version that serves now has further required inputs", retry_after_s=1.0)
        if any(signature.output(name) is None for name in self._output_names) or signature.is_decoupled != self.is_decoupled:
            raise Unavailable("the version that serves now has other outputs", retry_after_s=1.0)
        self._signature = signature
        self._inputs = tuple(inputs)
        self._is_batched = signature.is_batched
        self._most_rows = signature.request_rows

    def _check_tensor(self, given: StepInput, array: Array) -> None:
        """Raises unless `array` fits an input whose dims vary."""
        shape = array.shape[1:] if self._is_batched else array.shape
        is_fitting = len(shape) == len(given.dims) and (array.ndim > 0 or not self._is_batched)
        if not is_fitting or any(dim not in (VARIABLE, size) for size, dim in zip(shape, given.dims, strict=True)):
            expected = [VARIABLE, *given.dims] if self._is_batched else list(given.dims)
            raise BackendFailed(f"input '{given.name}' expects shape {expected}, but the tensor '{given.tensor}' has {list(array.shape)}")
        if array.dtype != given.dtype:
            raise BackendFailed(f"input '{given.name}' expects {given.dtype}, but the tensor '{given.tensor}' is {array.dtype}")


class Level:
    """The steps that run once for each response of the decoupled step before them (the first level: for each request).

    Attributes:
        first: The steps that need no output of another step of the level.
        waits: By index of the step, the number of steps of the level that it needs.
        decoupled: The decoupled step, which runs after all others of the level; None: there is none.
    """

    __slots__ = ("decoupled", "first", "waits")

    def __init__(self, steps: Sequence[PlannedStep]) -> None:
        plain = [step for step in steps if not step.is_decoupled]
        self.decoupled = next((step for step in steps if step.is_decoupled), None)
        self.waits = {step.index: sum(step in other.followers for other in plain) for step in plain}
        self.first = [step for step in plain if not self.waits[step.index]]


class EnsemblePlan:
    """The steps for one selection of outputs.

    Attributes:
        steps: The steps to run.
        waits: `PlannedStep.waits` of each.
        first: The steps that need no output of another.
        levels: The steps before the first decoupled one, those between it and the second, and so on; empty: no step is decoupled.
    """

    __slots__ = ("first", "levels", "steps", "waits")

    def __init__(self, ensemble: Ensemble, signatures: Sequence[ModelSignature], output_names: Sequence[str], resolve: Resolve) -> None:
        """Makes the plan for the outputs `output_names`; `signatures` are those of the steps' models, which fit the ensemble."""
        needed = _needed(ensemble, output_names)
        wanted = {*output_names, *(tensor for index in needed for tensor in ensemble.steps[index].inputs.values())}
        names = ensemble.step_names
        self.steps: list[PlannedStep] = []
        producers: dict[str, PlannedStep] = {}
        for index in needed:
            step = ensemble.steps[index]
            outputs = [(name, tensor) for name, tensor in step.outputs.items() if tensor in wanted]
            planned = PlannedStep(
                len(self.steps), names[index], step.model, step.version, list(step.inputs.items()), outputs, signatures[index], resolve,
                step.key,
            )  # fmt: skip
            self.steps.append(planned)
            for _, tensor in outputs:
                producers[tensor] = planned
        for planned in self.steps:
            inputs = ensemble.steps[needed[planned.index]].inputs.values()
            before = {producers[tensor].index for tensor in inputs if tensor in producers}
            planned.waits = len(before)
            for index in sorted(before):
                self.steps[index].followers.append(planned)
        self.first = [planned for planned in self.steps if not planned.waits]
        self.waits = [planned.waits for planned in self.steps]
        self.levels: list[Level] = []
        if any(planned.is_decoupled for planned in self.steps):
            _set_depths(self.steps)
            depths = range(max(planned.depth + planned.is_decoupled for planned in self.steps) + 1)
            self.levels = [Level([planned for planned in self.steps if planned.depth == depth]) for depth in depths]


def _needed(ensemble: Ensemble, output_names: Sequence[str]) -> list[int]:
    """The steps that the outputs need, in the order of the configuration."""
    producers = {tensor: index for index, step in enumerate(ensemble.steps) for tensor in step.outputs.values()}
    needed: set[int] = set()
    waiting = list(output_names)
    while waiting:
        index = producers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting.extend(ensemble.steps[index].inputs.values())
    return sorted(needed)


def _set_depths(steps: Sequence[PlannedStep]) -> None:
    """Sets the depth of each step: a step comes after those that it needs."""
    left = [step.waits for step in steps]
    ready = [step for step in steps if not step.waits]
    while ready:
        step = ready.pop()
        for follower in step.followers:
            follower.depth = max(follower.depth, step.depth + step.is_decoupled)
            left[follower.index] -= 1
            if not left[follower.index]:
                ready.append(follower)
