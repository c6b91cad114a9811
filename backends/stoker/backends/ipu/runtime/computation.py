"""`Computation`: one sub-graph as the device runs it on one micro-batch: its values, and its modelled time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.program import SubGraph
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.streams import zeros_of
from stoker.backends.ipu.timing import step_timing
from stoker.backends.simulated.clocks import NS_PER_S
from stoker.backends.simulated.numerics import GraphRunner, NumericsError

Array = npt.NDArray[Any]


class Computation:
    """A sub-graph of an executable. One thread at a time.

    Attributes:
        inputs: Anchors it reads, in the graph's order.
        outputs: Anchors it writes.
        period_ns: Modelled time from one micro-batch to the next on a busy device.
        latency_ns: Modelled time of one micro-batch from its input to its output.
        cycles: Modelled cycles of one micro-batch, all steps together.
    """

    def __init__(self, executable: Executable, graph: SubGraph, runner: GraphRunner | None) -> None:
        """Prepares `graph`.

        Args:
            executable: Whose graph it is.
            graph: The sub-graph.
            runner: Computes it; None: outputs are zeros.

        Raises:
            ApplicationRuntimeError: the graph's inputs and outputs are not those of its anchors.
        """
        self.graph = graph
        self.inputs = tuple(executable.anchor(binding.anchor, TensorType.INPUT) for binding in graph.inputs)
        self.outputs = tuple(executable.anchor(binding.anchor, TensorType.OUTPUT) for binding in graph.outputs)
        self._runner = runner
        self._zeros = {anchor.name: zeros_of(anchor) for anchor in self.outputs} if runner is None else {}
        if runner is not None:
            self._refuse_other_values(runner, executable)
        self._replicas = executable.program.replication_factor
        timing = step_timing(executable.program, graph.index)
        micro_batches = executable.program.batches_per_step
        self.period_ns = round(timing.period_s * NS_PER_S / micro_batches)
        # Later micro-batches of a call come out one period after the other; the rest is what the first takes.
        self.latency_ns = round(timing.latency_s * NS_PER_S) - (micro_batches - 1) * self.period_ns
        self.cycles = sum(step.cycles for step in graph.steps)

    def _refuse_other_values(self, runner: GraphRunner, executable: Executable) -> None:
        where = f"sub-graph '{self.graph.name}'"
        fed = sorted(binding.tensor for binding in (*self.graph.inputs, *self.graph.weights))
        if fed != sorted(runner.inputs):
            raise ApplicationRuntimeError(f"{where} has the inputs {', '.join(runner.inputs)}; its anchors feed {', '.join(fed)}")
        for binding in (*self.graph.inputs, *self.graph.weights, *self.graph.outputs):
            is_output = binding in self.graph.outputs
            anchor = executable.anchor(binding.anchor, TensorType.OUTPUT if is_output else TensorType.INPUT)
            found = (runner.outputs if is_output else runner.inputs).get(binding.tensor)
            if found is None:
                raise ApplicationRuntimeError(f"{where} has no output '{binding.tensor}', which anchor '{anchor.name}' shows")
            is_split = anchor.is_per_replica and binding not in self.graph.weights
            shape, dtype = anchor.tensor_info.shape[int(is_split) :], anchor.tensor_info.data_type.numpy
            if not found.fits(shape, dtype):
                raise ApplicationRuntimeError(f"{where}: '{binding.tensor}' is {found}, its anchor '{anchor.name}' {dtype}{list(shape)}")

    @property
    def is_timed(self) -> bool:
        """Whether the host's time can be compared with the device's: outputs are computed, and there is a schedule."""
        return self._runner is not None and self.period_ns > 0

    def run(self, inputs: Mapping[str, Array], weights: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of one micro-batch of every replica.

        Args:
            inputs: By anchor; those of per-replica anchors with a leading replica dimension.
            weights: What the load programs left on the device, by anchor.

        Returns:
            By anchor, in the anchor's shape and dtype.

        Raises:
            ApplicationRuntimeError: the graph cannot be run on them.
        """
        if self._runner is None:
            return self._zeros
        results = [self._run_replica(self._runner, replica, inputs, weights) for replica in range(self._replicas)]
        return {anchor.name: _joined(anchor, [result[anchor.name] for result in results]) for anchor in self.outputs}

    def _run_replica(
        self, runner: GraphRunner, replica: int, inputs: Mapping[str, Array], weights: Mapping[str, Array]
    ) -> dict[str, Array]:
        feeds = {binding.tensor: weights[binding.anchor] for binding in self.graph.weights}
        for anchor, binding in zip(self.inputs, self.graph.inputs, strict=True):
            value = inputs[anchor.name]
            feeds[binding.tensor] = value[replica] if anchor.is_per_replica else value
        tensors = list(dict.fromkeys(binding.tensor for binding in self.graph.outputs))
        try:
            values = runner.run(feeds, tensors)
        except NumericsError as error:
            raise ApplicationRuntimeError(f"sub-graph '{self.graph.name}': {error}") from error
        return {binding.anchor: values[binding.tensor] for binding in self.graph.outputs}


def _joined(anchor: Anchor, values: list[Array]) -> Array:
    info = anchor.tensor_info
    value = np.stack(values) if anchor.is_per_replica else values[0]
    if value.dtype != info.data_type.numpy or value.shape != info.shape:
        raise ApplicationRuntimeError(
            f"output '{anchor.name}' was computed as {value.dtype}{list(value.shape)}, "
            f"its anchor says {info.data_type.numpy}{list(info.shape)}"
        )
    return value
