"""`VendorExecutable`: one instance's engine on clusters of a real card. It runs batches and handles failures of the card.

The inputs of a batch's requests are concatenated on the host and copied to the card once per tensor. A batch that fails, or does not end
before the timeout, may have met a broken card or have broken the engine: unless the engine then runs zeros, it is closed, and loaded again
before the next batch.
"""

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stoker.backends.api.batch import Share
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.errors import BackendFailed, ModelLoadError, ServingError, Unavailable
from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.devices.pool import DeviceCounters, LoadedExecutable
from stoker.backends.gcu.program import GcuTensor
from stoker.backends.gcu.serving.instance import CardRun
from stoker.backends.gcu.serving.options import ModelParameters
from stoker.backends.gcu.serving.placement import Placement
from stoker.backends.gcu.serving.sample_layout import SampleLayout
from stoker.backends.gcu.vendor.engine import VendorEngine
from stoker.backends.gcu.vendor.failure import DEVICE_STATUSES, VendorCallFailed

Array = npt.NDArray[Any]
#: Longest wait for the release of an engine, seconds: its queued batches end first.
CLOSE_TIMEOUT_S = 30.0


class VendorExecutable(LoadedExecutable):
    """Any thread may run batches on it.

    Attributes:
        parameters: The parameters of the model.
    """

    device_errors: ClassVar = (VendorCallFailed, TimeoutError)

    def __init__(
        self,
        library: Any,
        path: Path,
        signature: ModelSignature,
        placement: Placement,
        parameters: ModelParameters,
        counters: DeviceCounters[Any, Any],
    ) -> None:
        """Loads the engine at `path` to the clusters of `placement`, and runs it once.

        Raises:
            VendorCallFailed: the library rejects the engine or its inputs.
            ModelLoadError: the outputs are not those of `signature`, or the first run does not end.
        """
        super().__init__(placement.card, counters, SystemClock())
        self.parameters = parameters
        self._library = library
        self._path = path
        self._placement = placement
        inputs, outputs = (tuple(_tensor(spec, signature) for spec in specs) for specs in (signature.inputs, signature.outputs))
        self._layout = SampleLayout(signature, inputs, outputs)
        self._least_samples = 1 if signature.is_batched else self._layout.capacity
        self._lock = threading.Lock()
        self._engine: VendorEngine | None = self._new_engine()
        try:
            self._check_outputs()
        except BaseException:
            self.close()
            raise

    def run(self, items: Sequence[Share], clock: Clock) -> CardRun:
        """See `BatchRunner.run`."""
        with self.counted_batch():
            engine = self._usable_engine()
            try:
                return self._run(engine, items, clock)
            except VendorCallFailed as error:
                if error.status in DEVICE_STATUSES or not self._runs_zeros(engine):
                    self._give_up(engine)
                    self._counters.count_fault(self._placement.card, error.kind)
                    raise Unavailable(f"{self._where} failed: {error}; the engine is loaded again before the next batch") from error
                raise
            except TimeoutError:
                self._give_up(engine)
                raise

    def close(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(wait_s=CLOSE_TIMEOUT_S)

    def failure(self, error: Exception) -> ServingError:
        if isinstance(error, VendorCallFailed):
            self._counters.count_fault(self._placement.card, error.kind)
            return BackendFailed(f"{self._where}: {error}")
        self._counters.count_fault(self._placement.card, "timeout")
        return Unavailable(f"{self._where}: a batch was given up after {self.parameters.timeout_s} s (parameter timeout_ms)")

    @property
    def _where(self) -> str:
        return f"card {self._placement.card}"

    def _run(self, engine: VendorEngine, items: Sequence[Share], clock: Clock) -> CardRun:
        layout = self._layout
        counts = [layout.samples(item) for item in items]
        inputs = [_joined([layout.block(item, tensor) for item in items]) for tensor in layout.inputs]
        outputs = [np.empty((sum(counts), *tensor.dims), tensor.dtype.numpy) for tensor in layout.outputs]
        merged_ns = clock.now_ns()
        run_ended_ns: list[int] = []
        ended = engine.submit(sum(counts), inputs, outputs, lambda: run_ended_ns.append(clock.now_ns()))
        ended.result(self.parameters.timeout_s)
        bounds = list(itertools.accumulate(counts, initial=0))
        shares = [
            {name: self._part(outputs, name, first, last) for name in item.output_names}
            for item, first, last in zip(items, bounds, bounds[1:], strict=False)
        ]
        return CardRun(shares, merged_ns, run_ended_ns[0], clock.now_ns())

    def _part(self, outputs: Sequence[Array], name: str, first: int, last: int) -> Array:
        served = self._layout.output(name)
        return outputs[served.index][first:last].reshape(self._layout.shape(served, last - first))

    def _runs_zeros(self, engine: VendorEngine) -> bool:
        """Whether the engine still works, so that a request was the cause of a failure."""
        try:
            self._probe(engine)
        except (VendorCallFailed, TimeoutError):
            return False
        return True

    def _probe(self, engine: VendorEngine) -> Sequence[Array]:
        zeros = [[np.zeros((1, *tensor.dims), tensor.dtype.numpy)] * self._least_samples for tensor in self._layout.inputs]
        return engine.probe(self._least_samples, zeros, self.parameters.timeout_s)

    def _check_outputs(self) -> None:
        assert self._engine is not None
        try:
            found = self._probe(self._engine)
        except TimeoutError:
            raise ModelLoadError(f"the first run did not end in {self.parameters.timeout_s} s (parameter timeout_ms)") from None
        wrong = []
        if len(found) != len(self._layout.outputs):
            wrong.append(f"it has {len(found)} outputs, config.pbtxt declares {len(self._layout.outputs)}")
        for tensor, array in zip(self._layout.outputs, found, strict=False):
            expected = self._least_samples * tensor.sample_bytes
            if array.dtype != tensor.dtype.numpy or array.nbytes != expected:
                declared = f"{tensor.dtype.numpy} {[self._least_samples, *tensor.dims]}"
                wrong.append(f"output '{tensor.name}' is {array.dtype} {list(array.shape)}, config.pbtxt declares {declared}")
        if wrong:
            raise ModelLoadError(f"the engine does not agree with config.pbtxt, whose tensors must be in its order: {'; '.join(wrong)}")

    def _usable_engine(self) -> VendorEngine:
        with self._lock:
            if self._engine is None:
                try:
                    self._engine = self._new_engine()
                except VendorCallFailed as error:
                    raise Unavailable(f"{self._where} failed, and its engine cannot be loaded again: {error}") from error
                self._counters.count_reset(self._placement.card)
            return self._engine

    def _give_up(self, engine: VendorEngine) -> None:
        with self._lock:
            if self._engine is engine:
                self._engine = None
        engine.close()

    def _new_engine(self) -> VendorEngine:
        layout = self._layout
        return VendorEngine(
            self._library,
            self._path,
            card=self._placement.card,
            clusters=self._placement.clusters,
            input_bytes=[tensor.sample_bytes * layout.capacity for tensor in layout.inputs],
            output_bytes=[tensor.sample_bytes * layout.capacity for tensor in layout.outputs],
            depth=self.parameters.pipeline_depth,
        )


def _tensor(spec: TensorSpec, signature: ModelSignature) -> GcuTensor:
    return GcuTensor(spec.name, spec.datatype, tuple(spec.model_dims if signature.is_batched else spec.model_dims[1:]))


def _joined(blocks: Sequence[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else np.concatenate([block.reshape(-1) for block in blocks])
