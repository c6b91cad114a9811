"""`GcuInstance`, and `GcuBatchProcessor`, which passes the requests of a batch separately to the engine on a card (`BatchRunner`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from stoker.backends.api.backend import Arrays, Instance
from stoker.backends.api.batch import BatchItem, BatchProcessor, BatchResult, Outcome, Share
from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.api.model import ModelSignature
from stoker.backends.gcu.serving.options import ModelParameters

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class CardRun:
    """One batch that ran.

    Attributes:
        outputs: For each item, its outputs by name.
        merged_ns, ran_ns, done_ns: Times at which the copies of the inputs were queued, the run ended, and all outputs were on the host; on
            the clock of the caller.
    """

    outputs: Sequence[Mapping[str, Array]]
    merged_ns: int
    ran_ns: int
    done_ns: int


class BatchRunner(Protocol):
    """One instance's engine on a card, simulated or real. Any thread may use it, at most one per batch in flight."""

    @property
    def parameters(self) -> ModelParameters:
        """The parameters of the model."""

    def run(self, items: Sequence[Share], clock: Clock) -> CardRun:
        """Runs `items` as one batch. REQUIRES: they have at most max_batch_size samples.

        Raises:
            ServingError: a request is invalid or the card failed. The memory of the requests is no longer in use.
        """

    def close(self) -> None:
        """Removes everything from the card. Called once, when no batch is running."""


class GcuInstance(Instance):
    """Runs batches of any size up to max_batch_size. Up to `pipeline_depth` threads may run batches at once.

    Attributes:
        loaded: The loaded executable on its card.
    """

    def __init__(self, loaded: BatchRunner, signature: ModelSignature, *, on_close: Callable[[], None]) -> None:
        """Serves `signature` with `loaded`. `on_close` releases the resources outside the card."""
        self.loaded = loaded
        self.pipeline_depth = loaded.parameters.pipeline_depth
        self.batch_processor = GcuBatchProcessor
        self._signature = signature
        self._on_close = on_close

    def execute(self, inputs: Arrays, output_names: Sequence[str]) -> Arrays:
        """Implements `Instance.execute`.

        The server passes batches through `GcuBatchProcessor` instead, which does not concatenate them on the host.
        """
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
        """Creates a processor for a `GcuInstance`. Its buffers are on the card, not on the host."""
        assert isinstance(instance, GcuInstance)
        self._loaded = instance.loaded
        self._clock = clock

    def run_together(self, items: Sequence[Share], result: BatchResult) -> list[Outcome]:
        """See `BatchProcessor`.

        `infer_ns` includes the copies to the device, because the processor waits for them together with the run.
        """
        begun_ns = self._clock.now_ns()
        ran = self._loaded.run(items, self._clock)
        result.input_ns += ran.merged_ns - begun_ns
        result.infer_ns += ran.ran_ns - ran.merged_ns
        result.output_ns += ran.done_ns - ran.ran_ns
        result.executions.append(sum(item.rows for item in items))
        return list(ran.outputs)
