"""N requests in, one device execution, N outcomes out.

A `BatchProcessor` copies every request's tensors once into preallocated `Buffer`s, runs the instance once, and answers each request with
slices of the outputs. A request's outcome never depends on a batchmate: if the execution of several fails, each is run once more alone, so
that only the culprit fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from backends.api.backend import Arrays, Instance
from backends.api.clock import Clock
from backends.api.errors import BackendFailed, ServingError
from backends.api.model import ModelSignature, TensorSpec
from backends.api.tensor import element_count

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One request's share of a batch.

    Attributes:
        inputs: By input name, `[rows, *dims]`, validated against the signature.
        rows: Rows of the batch dimension; 1 where the model is not batched.
        output_names: The outputs this request wants.
    """

    inputs: Arrays
    rows: int
    output_names: tuple[str, ...]


Outcome = Mapping[str, Array] | ServingError
"""What became of one request: its outputs by name, `[rows, *dims]`, or its error."""


@dataclass(slots=True)
class BatchResult:
    """Outcomes in the order of the items, and where the time went (summed over retries).

    Attributes:
        outcomes: One for each item.
        executions: Rows of each execution that the instance finished.
        input_ns: Gathering inputs into Buffers.
        infer_ns: Inside `Instance.execute`.
        output_ns: Slicing outputs.
    """

    outcomes: list[Outcome]
    executions: list[int] = field(default_factory=list)
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class Buffer:
    """A preallocated, typed `[max_batch, *dims]` block that requests are copied into.

    Where `dims` has variable sizes the block grows to the largest batch seen and is viewed in the batch's shape, so that its memory stays
    that of one batch. Confined to: the slot of the worker that owns it.
    """

    def __init__(self, spec: TensorSpec, max_batch_size: int) -> None:
        self._spec = spec
        self._max_rows = max(1, max_batch_size)
        self._flat: Array = np.empty(self._max_rows * element_count(spec.dims) if spec.is_static else 0, dtype=spec.datatype.numpy)

    @property
    def capacity_bytes(self) -> int:
        """Bytes held (for BYTES, of the references)."""
        return int(self._flat.nbytes)

    def view(self, rows: int, row_shape: tuple[int, ...]) -> Array:
        """A C-contiguous `[rows, *row_shape]` window on the block; its content is what earlier batches left."""
        count = rows * element_count(row_shape)
        if count > self._flat.size:
            self._flat = np.empty(count, dtype=self._flat.dtype)
        return self._flat[:count].reshape(rows, *row_shape)

    def gather(self, arrays: Sequence[Array], pad_to: int | None = None) -> Array:
        """Copies `arrays`, each `[rows_i, *row_shape]`, one below the other; returns the `[sum(rows_i), *row_shape]` window.

        With `pad_to`, rows up to it follow, zeroed (empty strings for BYTES), so that nothing of an earlier batch reaches the device.
        """
        row_shape = arrays[0].shape[1:]
        rows = sum(array.shape[0] for array in arrays)
        window = self.view(max(rows, pad_to or 0), row_shape)
        at = 0
        for array in arrays:
            window[at : at + array.shape[0]] = array
            at += array.shape[0]
        if at < window.shape[0]:
            window[at:] = b"" if self._spec.datatype.is_bytes else 0
        return window

    def release(self) -> None:
        """Drops references to request data that an object block would keep alive after the batch."""
        if self._spec.datatype.is_bytes:
            self._flat.fill(None)


class BatchProcessor:
    """Runs batches on one instance, through one set of Buffers. Confined to: one slot of one worker."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        self._instance = instance
        self._signature = signature
        self._clock = clock
        self._buffers = {spec.name: Buffer(spec, signature.max_batch_size) for spec in signature.inputs} if signature.is_batched else {}

    def process(self, items: Sequence[BatchItem]) -> BatchResult:
        """Runs `items` (at most max_batch_size rows in all, all of one shape beyond the batch dimension). Never raises `Exception`."""
        result = BatchResult(outcomes=[])
        together = self._attempt(items, result)
        if isinstance(together, ServingError) and len(items) > 1:
            for item in items:
                alone = self._attempt([item], result)
                result.outcomes.append(alone if isinstance(alone, ServingError) else alone[0])
        elif isinstance(together, ServingError):
            result.outcomes.append(together)
        else:
            result.outcomes.extend(together)
        return result

    def _attempt(self, items: Sequence[BatchItem], result: BatchResult) -> list[Outcome] | ServingError:
        start = self._clock.now_ns()
        rows = sum(item.rows for item in items)
        try:
            inputs = self._gather(items, rows)
            gathered = self._clock.now_ns()
            result.input_ns += gathered - start
            names = items[0].output_names if len(items) == 1 else _union(items)
            try:
                outputs = self._instance.execute(inputs, names)
            finally:
                ran = self._clock.now_ns()
                result.infer_ns += ran - gathered
            outcomes = self._split(items, rows, outputs)
        except ServingError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the contract of every backend: whatever it raises becomes this batch's failure
            return BackendFailed(f"{type(error).__name__}: {error}")
        finally:
            for buffer in self._buffers.values():
                buffer.release()
        result.executions.append(rows)
        result.output_ns += self._clock.now_ns() - ran
        return outcomes

    def _gather(self, items: Sequence[BatchItem], rows: int) -> Arrays:
        first = items[0].inputs
        pad_to = self._instance.static_batch_size if self._signature.is_batched else None
        inputs: dict[str, Array] = {}
        for name, array in first.items():
            spec = self._signature.input(name)
            if spec is None:
                raise BackendFailed(f"batch holds an input '{name}' that the signature does not have")
            if not self._signature.is_batched:
                whole = np.ascontiguousarray(array) if spec.reshape is None else _reshaped(array, (), spec.reshape)
            elif len(items) == 1 and (pad_to is None or pad_to == rows) and array.flags.c_contiguous:
                # A request alone in its batch is already laid out as the device wants it: no copy.
                whole = array if spec.reshape is None else _reshaped(array, (rows,), spec.reshape)
            else:
                whole = self._buffers[name].gather([item.inputs[name] for item in items], pad_to)
                if spec.reshape is not None:
                    whole = _reshaped(whole, (whole.shape[0],), spec.reshape)
            inputs[name] = whole
        return inputs

    def _split(self, items: Sequence[BatchItem], rows: int, outputs: Arrays) -> list[Outcome]:
        missing = sorted({name for item in items for name in item.output_names} - outputs.keys())
        if missing:
            raise BackendFailed(f"the model did not produce output(s) {', '.join(missing)}")
        whole = {name: self._checked(name, array, rows) for name, array in outputs.items()}
        if len(items) == 1:
            return [{name: whole[name] for name in items[0].output_names}]
        outcomes: list[Outcome] = []
        at = 0
        for item in items:
            outcomes.append({name: whole[name][at : at + item.rows] for name in item.output_names})
            at += item.rows
        return outcomes

    def _checked(self, name: str, array: Array, rows: int) -> Array:
        spec = self._signature.output(name)
        if spec is None:
            raise BackendFailed(f"the model produced '{name}', which is not an output of its signature")
        if array.dtype != spec.datatype.numpy:
            raise BackendFailed(f"output '{name}' came as {array.dtype}, the signature says {spec.datatype.value}")
        if not self._signature.is_batched:
            return array if spec.reshape is None else _reshaped(array, (), spec.dims)
        expected = self._instance.static_batch_size or rows
        if array.ndim == 0 or array.shape[0] != expected:
            raise BackendFailed(f"output '{name}' came with shape {list(array.shape)}, expected {expected} rows in its first dimension")
        if array.shape[0] != rows:
            array = array[:rows]
        return array if spec.reshape is None else _reshaped(array, (rows,), spec.dims)


def _union(items: Sequence[BatchItem]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in items for name in item.output_names))


def _reshaped(array: Array, lead: tuple[int, ...], dims: tuple[int, ...]) -> Array:
    """`array` viewed as `[*lead, *dims]`; several variable dims stand for the array's own sizes, in order (Triton's reshape rule)."""
    if sum(1 for dim in dims if dim < 0) > 1:
        sizes = iter(size for size in array.shape[len(lead) :] if size != 1)
        dims = tuple(dim if dim >= 0 else next(sizes, 1) for dim in dims)
    return np.ascontiguousarray(array).reshape(*lead, *dims)
