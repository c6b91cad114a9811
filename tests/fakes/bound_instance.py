"""`BoundInstance`: a `FakeInstance` whose small batches run in bound tensors or are refused there."""

import numpy as np

from stoker.backends.api.backend import Arrays
from stoker.backends.testing.fake_backend import FakeInstance


class _Tensors:
    """The tensors of one batch size, in the shapes of requests; dims must be static."""

    def __init__(self, instance: "BoundInstance", rows: int) -> None:
        self._instance = instance
        lead = (rows,) if instance.signature.is_batched else ()
        self.inputs = {spec.name: np.zeros((*lead, *spec.dims), spec.datatype.numpy) for spec in instance.signature.inputs}

    def run(self) -> Arrays | None:
        instance = self._instance
        instance.bound_runs += 1
        if instance.rejects:
            return None
        return instance.execute(self.inputs, [spec.name for spec in instance.signature.outputs])


class BoundInstance(FakeInstance):
    """Has tensors for batches of up to `most_rows` rows.

    Attributes:
        most_rows: See above.
        rejects: Batches do not run in them, as those of a model whose outputs do not fit.
        bound_runs: Batches that ran in them, or were refused.
    """

    most_rows = 8
    rejects = False
    bound_runs = 0

    def bound(self, rows: int) -> _Tensors | None:
        if rows > self.most_rows:
            return None
        known: dict[int, _Tensors] = self.__dict__.setdefault("_tensors", {})
        return known.setdefault(rows, _Tensors(self, rows))
