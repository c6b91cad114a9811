"""`GcuInstance`, and `GcuBatchProcessor`, which passes it the requests of a batch one by one."""

from collections.abc import Callable, Sequence

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchItem, BatchProcessor, BatchResult, Outcome, Share
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.model import ModelSignature
from stoker.backends.gcu.serving.executable import CardExecutable


class GcuInstance(Instance):
    """Runs batches of any size up to max_batch_size; several threads may, up to `pipeline_depth`.

    Attributes:
        loaded: What it has on its card.
    """

    def __init__(self, loaded: CardExecutable, signature: ModelSignature, *, on_close: Callable[[], None]) -> None:
        """Runs what `signature` says on `loaded`; `on_close` gives back what is not the card's."""
        self.loaded = loaded
        self.pipeline_depth = loaded.parameters.pipeline_depth
        self.batch_processor = GcuBatchProcessor
        self._signature = signature
        self._on_close = on_close

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """As `Instance.execute`. The server's batches come by `GcuBatchProcessor`, without being put together on the host first."""
        lead = int(self._signature.is_batched)
        rows = next((array.shape[0] for array in inputs.values()), 0) if lead else 1
        [outputs_of_item] = self.loaded.run([BatchItem(inputs, rows, tuple(output_names))], SystemClock()).outputs
        shapes = {spec.name: spec.model_dims for spec in self._signature.outputs}
        return {name: array.reshape((*array.shape[:lead], *shapes[name])) for name, array in outputs_of_item.items()}

    def close(self) -> None:
        self.loaded.close()
        self._on_close()


class GcuBatchProcessor(BatchProcessor):
    """Confined to: one slot of one worker."""

    def __init__(self, instance: Instance, signature: ModelSignature, clock: Clock) -> None:
        """Of a `GcuInstance`; its buffers are on the card, and there are none on the host."""
        assert isinstance(instance, GcuInstance)
        self._loaded = instance.loaded
        self._clock = clock

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        """See `BatchProcessor`. Copies to the device are waited for together with the run, and so counted under `infer_ns`."""
        begun_ns = self._clock.now_ns()
        ran = self._loaded.run(items, self._clock)
        result.input_ns += ran.merged_ns - begun_ns
        result.infer_ns += ran.ran_ns - ran.merged_ns
        result.output_ns += ran.done_ns - ran.ran_ns
        result.executions.append(sum(item.rows for item in items))
        return list(ran.outputs)
