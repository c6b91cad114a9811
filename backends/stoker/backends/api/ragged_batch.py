"""Runs ragged batches: the processor for models whose signature has ragged inputs, or inputs and outputs made from the batch."""

from collections.abc import Sequence

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.api.batch import BatchProcessor, Outcome, Share
from stoker.backends.api.errors import BackendFailed
from stoker.backends.api.layout import Array, plain, reshaped


class RaggedProcessor(BatchProcessor):
    """A `BatchProcessor` that allocates each batch anew, because the length of a ragged vector depends on the requests of the batch."""

    def _gather(self, items: Sequence[Share], rows: int) -> Arrays:
        inputs: dict[str, Array] = {}
        for spec in self._signature.inputs:
            arrays = [item.inputs[spec.name] for item in items if spec.name in item.inputs]
            if not arrays:
                continue
            if len(arrays) != len(items):
                raise BackendFailed("the requests of one batch bring different sets of inputs")
            if spec.is_ragged:
                inputs[spec.name] = np.concatenate([array.reshape(-1) for array in arrays])
                continue
            whole = plain(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)
            inputs[spec.name] = whole if spec.reshape is None else reshaped(whole, 1, spec.dims, spec.reshape)
        for made in self._signature.batch_inputs:
            inputs[made.name] = made.made_from([item.inputs[made.source] for item in items])
        return inputs

    def _split(self, items: Sequence[Share], rows: int, wanted: tuple[str, ...], outputs: Arrays) -> list[Outcome]:
        missing = sorted({name for item in items for name in item.output_names} - outputs.keys())
        if missing:
            raise BackendFailed(f"the model did not produce output(s) {', '.join(missing)}")
        sources = {output.name: output.source for output in self._signature.batch_outputs}
        ends = np.cumsum([item.rows for item in items])[:-1].tolist()
        shares: dict[str, list[Array]] = {}
        for name, array in outputs.items():
            if name in sources:
                shares[name] = _scattered(name, array, [item.inputs[sources[name]].shape for item in items])
            else:
                shares[name] = list(np.split(self._checked(name, array, rows), ends))
        return [{name: shares[name][index] for name in item.output_names} for index, item in enumerate(items)]


def _scattered(name: str, array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """`array`'s elements in order, cut into arrays of `shapes`."""
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
    if array.size != sum(sizes):
        raise BackendFailed(f"output '{name}' came with {array.size} elements, the inputs it is cut by have {sum(sizes)}")
    pieces = np.split(array.reshape(-1), np.cumsum(sizes)[:-1].tolist())
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
