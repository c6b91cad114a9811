"""Runs N requests as one execution on the device and returns N outcomes.

A `BatchProcessor` copies every request's tensors once, runs the instance once, and returns slices of the outputs for each request. The
copies go into the tensors that the instance has bound (`Instance.bound`), or into preallocated `Buffer`s. A request's outcome never depends
on other requests of its batch: if the execution of several fails, each is run again alone, so that only the failing request gets the error.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from stoker.backends.api.backend import Arrays, BoundBatch, Instance, Parameters, ResponseSink
from stoker.backends.api.clock import Clock
from stoker.backends.api.errors import BackendFailed, ErrorCode, ModelLoadError, ServingError
from stoker.backends.api.layout import fits, is_plain, plain, reshaped
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.native import mypyc_attr
from stoker.backends.api.tensor import element_count

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

#: A block of variable size is kept for the next batch up to this size in bytes, so that one large batch does not determine the memory for
#: ever.
KEPT_BYTES: Final = 8 << 20
#: After a failed batch, so many of its requests that fail alone with UNAVAILABLE mean that the device failed, not a request.
LOST_IN_A_ROW: Final = 2


class Share(Protocol):
    """The interface of one request's share of a batch."""

    @property
    def inputs(self) -> Arrays:
        """By input name, `[rows, *dims]`, validated against the signature; views of what arrived, at any alignment."""

    @property
    def rows(self) -> int:
        """Rows of the batch dimension; 1 where the model is not batched."""

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs this request wants."""

    @property
    def parameters(self) -> Parameters:
        """The client's own parameters, for backends that read them."""

    @property
    def responses(self) -> ResponseSink | None:
        """Takes the responses of a model that may return any number of responses; None: exactly one response is wanted."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """A share without a request, such as one for warm-up; see `Share` and `RequestShare`."""

    inputs: Arrays
    rows: int
    output_names: tuple[str, ...]
    parameters: Parameters = field(default_factory=dict)
    responses: ResponseSink | None = None
    model_name: str = ""
    model_version: int | None = None
    request_id: str = ""
    priority: int = 0
    timeout_us: int = 0
    deadline_ns: int | None = None
    sequence: None = None
    trace_context: str = ""
    is_cancelled: bool = False


Outcome = Mapping[str, Array] | ServingError
"""The outcome of one request: its outputs by name, `[rows, *dims]`, or its error."""


class BatchResult:
    """Outcomes in the order of the items, and times in nanoseconds (summed over retries).

    Attributes:
        outcomes: One for each item.
        executions: Rows of each execution that the instance finished.
        input_ns: Time to gather inputs into Buffers.
        infer_ns: Time in `Instance.execute`.
        output_ns: Time to slice outputs.
        cpu_ns: CPU time of the thread, if it was measured.
        apart_ns: The three times of each item, where the items ran apart (`BatchProcessor.process_apart`); else None. `input_ns`,
            `infer_ns` and `output_ns` are then the sums over the executions.
    """

    __slots__ = ("apart_ns", "cpu_ns", "executions", "infer_ns", "input_ns", "outcomes", "output_ns")

    def __init__(
        self, outcomes: list[Outcome], executions: list[int] | None = None, input_ns: int = 0, infer_ns: int = 0, output_ns: int = 0
    ) -> None:
        self.outcomes = outcomes
        self.executions = [] if executions is None else executions
        self.input_ns = input_ns
        self.infer_ns = infer_ns
        self.output_ns = output_ns
        self.cpu_ns = 0
        self.apart_ns: list[tuple[int, int, int]] | None = None


class Buffer:
    """A preallocated, typed `[max_batch, *dims]` block that requests are copied into.

    Where `dims` has variable sizes the block grows with the batches, to `KEPT_BYTES` between them, and is viewed in the batch's shape, so
    that its memory stays that of one batch. Confined to: the slot of the worker that owns it.
    """

    def __init__(self, spec: TensorSpec, max_batch_size: int) -> None:
        """Allocates the block for `max_batch_size` rows.

        Raises:
            ModelLoadError: this host cannot allocate it.
        """
        self._spec = spec
        self._empty: Array | None = None if spec.is_static else np.zeros(0, dtype=spec.datatype.numpy)
        count = max(1, max_batch_size) * element_count(spec.dims) if spec.is_static else 0
        try:
            self._flat: Array = np.zeros(count, dtype=spec.datatype.numpy)
        except (MemoryError, ValueError) as error:
            raise ModelLoadError(
                f"input '{spec.name}' of dims {list(spec.dims)} is too large for this host at max_batch_size {max_batch_size}: "
                f"{count * spec.datatype.numpy.itemsize} bytes"
            ) from error

    @property
    def capacity_bytes(self) -> int:
        """Bytes held (for BYTES, of the references)."""
        return int(self._flat.nbytes)

    def view(self, rows: int, row_shape: tuple[int, ...]) -> Array:
        """A C-contiguous `[rows, *row_shape]` window on the block; its content is what earlier batches left."""
        count = rows * element_count(row_shape)
        if count > self._flat.size:
            self._flat = np.zeros(count, dtype=self._flat.dtype)
        return self._flat[:count].reshape((rows, *row_shape))

    def gather(self, arrays: Sequence[Array], pad_to: int | None = None) -> Array:
        """Copies `arrays`, each `[rows_i, *row_shape]`, one below the other; returns the `[sum(rows_i), *row_shape]` window.

        With `pad_to`, rows up to it follow, zeroed (empty strings for BYTES), so that nothing of an earlier batch reaches the device.
        """
        row_shape = arrays[0].shape[1:]
        rows = sum([array.shape[0] for array in arrays])
        if pad_to is None or pad_to <= rows:
            return np.concatenate(arrays, out=self.view(rows, row_shape))
        window = self.view(pad_to, row_shape)
        np.concatenate(arrays, out=window[:rows])
        window[rows:] = b"" if self._spec.datatype.is_bytes else 0
        return window

    def release(self) -> None:
        """Drops references to request data that an object block would keep alive after the batch, and a large block of variable size."""
        if self._empty is not None and self._flat.nbytes > KEPT_BYTES:
            self._flat = self._empty
        if self._spec.datatype.is_bytes:
            self._flat.fill(None)


@mypyc_attr(allow_interpreted_subclasses=True)
class BatchProcessor:
    """Runs batches on one instance, through one set of Buffers. Confined to: one slot of one worker.

    Each batch has one path: the tensors that the instance has bound, or `run_together` where there are none or the batch does not fit. An
    instance whose device takes requests by itself has a subclass (`Instance.batch_processor`) with its own `run_together`, which needs not
    call `__init__`.
    """

    _may_be_bound: bool = False

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        self._instance = instance
        self._signature = signature
        self._clock = clock
        self._buffers = {spec.name: Buffer(spec, signature.max_batch_size) for spec in signature.inputs} if signature.is_batched else {}
        # Looked up for every batch.
        self._now_ns = clock.now_ns
        self._is_batched = signature.is_batched
        self._inputs = {spec.name: spec for spec in signature.inputs}
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._has_optional_inputs = any(spec.optional for spec in signature.inputs)
        # The bound tensors of an instance are one set, for one slot.
        self._may_be_bound = not signature.is_ragged and not self._has_optional_inputs and instance.pipeline_depth <= 1
        #: The bound tensors by rows, while batches fit them.
        self._bound: dict[int, BoundBatch] = {}
        self._released = [
            self._buffers[spec.name]
            for spec in signature.inputs
            if (spec.datatype.is_bytes or not spec.is_static) and spec.name in self._buffers
        ]

    def process(self, items: Sequence[Share]) -> BatchResult:
        """Runs `items` (at most max_batch_size rows in all, all of one shape beyond the batch dimension). Never raises.

        SystemExit and the like become failures, too: they must not end the thread, whose batch is owed its responses.
        """
        result = BatchResult([])
        try:
            result.outcomes = self._run(items, result)
            return result
        except ServingError as error:
            failure: ServingError = error
        except BaseException as error:  # noqa: BLE001 - the contract of every backend: whatever it raises becomes this batch's failure
            failure = as_failure(error)
        if len(items) == 1:
            result.outcomes.append(failure)
        # Its traceback holds this frame: with a name here, only the garbage collector would free both, and the inputs with them.
        del failure
        if not result.outcomes:
            self._run_apart(items, result)
        return result

    def process_apart(self, first: Share, next_item: Callable[[], Share | None]) -> BatchResult:
        """Runs `first` alone, then each item that `next_item` returns, alone, until it returns None or a run has failed. Never raises.

        Args:
            first: The first item.
            next_item: Returns an item of as many rows as `first`.
        """
        result = BatchResult([])
        outcomes = result.outcomes
        apart_ns = result.apart_ns = []
        item: Share | None = first
        while item is not None:
            input_ns, infer_ns, output_ns = result.input_ns, result.infer_ns, result.output_ns
            failed = self._attempt([item], result)
            times_ns = (result.input_ns - input_ns, result.infer_ns - infer_ns, result.output_ns - output_ns)
            apart_ns.append(times_ns)
            if isinstance(failed, ServingError):
                outcomes.append(failed)
                if len(result.executions) < len(outcomes):
                    # It is none of the executions, so its times are not theirs.
                    result.input_ns, result.infer_ns, result.output_ns = input_ns, infer_ns, output_ns
                return result
            outcomes.append(failed[0])
            item = next_item()
        return result

    def process_each(self, items: Sequence[Share]) -> BatchResult:
        """Runs each of `items` alone, for a batch that has failed as one. Never raises."""
        result = BatchResult([])
        self._run_apart(items, result)
        return result

    def _run_apart(self, items: Sequence[Share], result: BatchResult) -> None:
        """Runs each of `items` alone, but stops after `LOST_IN_A_ROW` that a lost device failed: each could cost a timeout."""
        lost = 0
        for item in items:
            alone = self._attempt([item], result)
            result.outcomes.append(alone if isinstance(alone, ServingError) else alone[0])
            lost = lost + 1 if isinstance(alone, ServingError) and alone.code is ErrorCode.UNAVAILABLE else 0
            if isinstance(alone, ServingError) and lost == LOST_IN_A_ROW:
                result.outcomes.extend(alone for _ in items[len(result.outcomes) :])
                return

    def _attempt(self, items: Sequence[Share], result: BatchResult) -> list[Outcome] | ServingError:
        try:
            return self._run(items, result)
        except ServingError as error:
            return error
        except BaseException as error:  # noqa: BLE001 - as above
            return as_failure(error)

    def _run(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        """Runs `items` as one batch in the instance's bound tensors, or by `run_together`.

        Raises:
            Exception: the batch failed, for all of them alike.
        """
        if not self._may_be_bound:
            return self.run_together(items, result)
        now_ns = self._now_ns
        start = now_ns()
        first = items[0]
        is_alone = len(items) == 1
        rows = first.rows if is_alone else sum([item.rows for item in items])
        bound = self._bound.get(rows)
        if bound is None:
            bound = self._instance.bound(self._instance.static_batch_size or rows)
            if bound is None:
                return self.run_together(items, result)
            self._bound[rows] = bound
        inputs = bound.inputs
        if first.inputs.keys() != inputs.keys():
            return self.run_together(items, result)
        is_padded = False
        for name, tensor in inputs.items():
            target = tensor
            if self._is_batched and len(tensor) != rows:
                # Nothing of an earlier batch reaches the device.
                tensor[rows:] = 0
                target = tensor[:rows]
                is_padded = True
            if is_alone:
                target[...] = first.inputs[name]
            else:
                np.concatenate([item.inputs[name] for item in items], out=target)
        gathered = now_ns()
        result.input_ns += gathered - start
        try:
            outputs = bound.run()
        finally:
            executed = now_ns()
            result.infer_ns += executed - gathered
        if outputs is None:
            # The batch or the model does not fit: the instance may have other tensors next time, or none.
            self._bound.clear()
            return self.run_together(items, result)
        result.executions.append(rows)
        outcomes: list[Outcome] = []
        at = 0
        for item in items:
            end = at + item.rows
            outcome: dict[str, Array] = {}
            for name in item.output_names:
                outcome[name] = outputs[name][at:end] if is_padded or not is_alone else outputs[name]
            outcomes.append(outcome)
            at = end
        result.output_ns += now_ns() - executed
        return outcomes

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        """Runs `items` as one batch by `Instance.execute`, and adds to `result` its execution and where the time went.

        Raises:
            Exception: the batch failed, for all of them alike.
        """
        now_ns = self._now_ns
        start = now_ns()
        rows = items[0].rows if len(items) == 1 else sum([item.rows for item in items])
        try:
            wanted = _union(items)
            inputs = self._gather(items, rows)
            gathered = now_ns()
            result.input_ns += gathered - start
            try:
                outputs = self._instance.execute(inputs, wanted)
            finally:
                executed = now_ns()
                result.infer_ns += executed - gathered
            result.executions.append(rows)
            outcomes = self._split(items, rows, wanted, outputs)
            result.output_ns += now_ns() - executed
        finally:
            for buffer in self._released:
                buffer.release()
        return outcomes

    def _gather(self, items: Sequence[Share], rows: int) -> Arrays:
        first = items[0].inputs
        if self._has_optional_inputs and any(item.inputs.keys() != first.keys() for item in items):
            # Optional inputs may be left out, but then not by some of a batch: each runs alone instead.
            raise BackendFailed("the requests of one batch bring different sets of inputs")
        pad_to = self._instance.static_batch_size if self._is_batched else None
        inputs: dict[str, Array] = {}
        for name, array in first.items():
            spec = self._inputs.get(name)
            if spec is None:
                raise BackendFailed(f"batch holds an input '{name}' that the signature does not have")
            if not self._is_batched:
                whole = plain(array) if spec.reshape is None else reshaped(array, 0, spec.dims, spec.reshape)
            elif len(items) == 1 and (pad_to is None or pad_to == rows) and is_plain(array):
                # A request alone in its batch is already laid out as the device wants it: no copy.
                whole = array if spec.reshape is None else reshaped(array, 1, spec.dims, spec.reshape)
            else:
                whole = self._buffers[name].gather([item.inputs[name] for item in items], pad_to)
                if spec.reshape is not None:
                    whole = reshaped(whole, 1, spec.dims, spec.reshape)
            inputs[name] = whole
        return inputs

    def _split(self, items: Sequence[Share], rows: int, wanted: tuple[str, ...], outputs: Arrays) -> list[Outcome]:
        whole = {name: self._checked(name, array, rows) for name, array in outputs.items()}
        if not whole.keys() >= set(wanted):
            raise BackendFailed(f"the model did not produce output(s) {', '.join(sorted(set(wanted) - whole.keys()))}")
        if len(items) == 1:
            return [{name: whole[name] for name in wanted}]
        outcomes: list[Outcome] = []
        at = 0
        for item in items:
            outcomes.append({name: whole[name][at : at + item.rows] for name in item.output_names})
            at += item.rows
        return outcomes

    def _checked(self, name: str, array: Array, rows: int) -> Array:
        spec = self._outputs.get(name)
        if spec is None:
            raise BackendFailed(f"the model produced '{name}', which is not an output of its signature")
        if array.dtype != spec.datatype.numpy:
            raise BackendFailed(f"output '{name}' came as {array.dtype}, the signature says {spec.datatype.value}")
        lead = 1 if self._is_batched else 0
        if lead:
            expected = self._instance.static_batch_size or rows
            if array.ndim == 0 or array.shape[0] != expected:
                raise BackendFailed(f"output '{name}' came with shape {list(array.shape)}, expected {expected} rows in its first dimension")
            if expected != rows:
                array = array[:rows]
        if not fits(array.shape[lead:], spec.model_dims):
            raise BackendFailed(f"output '{name}' came with shape {list(array.shape[lead:])}, the signature says {list(spec.model_dims)}")
        return array if spec.reshape is None else reshaped(array, lead, spec.reshape, spec.dims)


def processor_for(instance: Instance, signature: ModelSignature, clock: Clock) -> BatchProcessor:
    """Returns a processor for one slot of `instance`'s worker, of the instance's own class if it has one."""
    processor: BatchProcessor = (instance.batch_processor or BatchProcessor)(instance, signature, clock)
    return processor


def _union(items: Sequence[Share]) -> tuple[str, ...]:
    """Outputs that any of `items` wants, in the order first wanted."""
    first = items[0].output_names
    for item in items:
        if item.output_names != first:
            return tuple(dict.fromkeys(name for each in items for name in each.output_names))
    return first


def as_failure(error: BaseException) -> BackendFailed:
    """Returns the failure for the client, with the original error as its cause for the log.

    An OSError's text holds a path, its strerror does not.
    """
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    failure = BackendFailed(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    failure.__cause__ = error
    return failure
