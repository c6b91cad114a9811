"""`LoadedProgram`: a session's executable as a device holds it, with the weights that its load programs copied."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.program import CUSTOM_LIBRARIES, StaticProgram, SubGraph
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, SessionStopped
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.runtime_config import SessionConfig
from stoker.backends.ipu.runtime.streams import TensorManager, zeros_of
from stoker.backends.ipu.timing import load_time_s, step_timing
from stoker.backends.simulated.numerics import MIN_ROWS, MIN_VARIABLE_BATCH, PADDED_ON_HOST, GraphRunner, Numerics, NumericsError
from stoker.backends.simulated.pacing import NS_PER_S

Array = npt.NDArray[Any]

_logger = logging.getLogger(__name__)


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
            executable: The executable of the graph.
            graph: The sub-graph.
            runner: Computes the graph; None: outputs are zeros.

        Raises:
            ApplicationRuntimeError: the graph's inputs and outputs are not those of its anchors.
        """
        self.graph = graph
        self.inputs = tuple(executable.anchor(binding.anchor, TensorType.INPUT) for binding in graph.inputs)
        self.outputs = tuple(executable.anchor(binding.anchor, TensorType.OUTPUT) for binding in graph.outputs)
        self._runner = runner
        self._zeros = {anchor.name: zeros_of(anchor) for anchor in self.outputs} if runner is None else {}
        if runner is not None:
            self._reject_other_values(runner, executable)
        self._has_variable_rows = runner is not None and runner.has_variable_rows([binding.tensor for binding in graph.inputs])
        self._rows = executable.program.micro_batch_size if executable.program.batch_axis == 0 else 0
        self._replicas = executable.program.replication_factor
        timing = step_timing(executable.program, graph.index)
        micro_batches = executable.program.batches_per_step
        self.period_ns = round(timing.period_s * NS_PER_S / micro_batches)
        # Later micro-batches of a call follow at intervals of one period; the remaining time is that of the first.
        self.latency_ns = round(timing.latency_s * NS_PER_S) - (micro_batches - 1) * self.period_ns
        self.cycles = sum(step.cycles for step in graph.steps)

    @property
    def pads(self) -> bool:
        """Whether the host computes rows of zeros at the end of a micro-batch."""
        return self._runner is not None and self._rows >= MIN_VARIABLE_BATCH and not self._has_variable_rows

    def _reject_other_values(self, runner: GraphRunner, executable: Executable) -> None:
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
        """Returns the outputs of one micro-batch of every replica.

        Rows of zeros at the end are computed once, if the graph has a variable batch.

        Args:
            inputs: By anchor; those of per-replica anchors with a leading replica dimension.
            weights: Weights on the device, by anchor.

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
        names = [binding.tensor for binding in self.graph.inputs]
        size = len(feeds[names[0]]) if self._has_variable_rows else 0
        rows = _rows_without_padding([feeds[name] for name in names]) if size else 0
        if rows < size:
            feeds |= {name: feeds[name][:rows] for name in names}
        try:
            values = runner.run(feeds, tensors)
        except NumericsError as error:
            raise ApplicationRuntimeError(f"sub-graph '{self.graph.name}': {error}") from error
        if rows < size:
            values = {name: _repeated_last_row(value, size) for name, value in values.items()}
        return {binding.anchor: values[binding.tensor] for binding in self.graph.outputs}


def _rows_without_padding(arrays: Sequence[Array]) -> int:
    """Returns the number of rows up to the first of the rows of zeros at the end, which is included; at least `MIN_ROWS`.

    Zeros with a sign count as data.
    """
    rows = len(arrays[0])
    while rows > MIN_ROWS and not any(np.ascontiguousarray(array[rows - 2 : rows]).view(np.uint8).any() for array in arrays):
        rows -= 1
    return rows


def _repeated_last_row(value: Array, size: int) -> Array:
    """Returns `value` with its last row, the output of a row of zeros, repeated up to `size` rows."""
    whole = np.empty((size, *value.shape[1:]), value.dtype)
    whole[: len(value)] = value
    whole[len(value) :] = value[-1:]
    return whole


def _joined(anchor: Anchor, values: list[Array]) -> Array:
    info = anchor.tensor_info
    value = np.stack(values) if anchor.is_per_replica else values[0]
    if value.dtype != info.data_type.numpy or value.shape != info.shape:
        raise ApplicationRuntimeError(
            f"output '{anchor.name}' was computed as {value.dtype}{list(value.shape)}, "
            f"its anchor says {info.data_type.numpy}{list(info.shape)}"
        )
    return value


#: How PopART calls the stream that downloads a weight [C].
_SAVED_WEIGHT = "weight_d2h_"


class LoadedProgram:
    """A loaded program, with the state that the device keeps of it.

    Attributes:
        name: Name of the executable.
        weights: Weights on the device, by anchor; replaced whenever load programs run.
        computations: By the index that selects them.
        load_s: Modelled time to load code and weights.
        reloads_when_evicted: See `SessionConfig`.
        is_loaded_once: Whether the user has run the load programs, so that a reload runs them too.
    """

    def __init__(self, executable: Executable, streams: TensorManager, gate: Gate, config: SessionConfig) -> None:
        """Prepares every sub-graph.

        Raises:
            ApplicationRuntimeError: a sub-graph cannot be computed on this host; the text names it.
        """
        self.name = executable.name
        self.weights: dict[str, Array] = {}
        self.load_s = load_time_s(executable.program)
        self.reloads_when_evicted = config.reloads_when_evicted
        self.is_loaded_once = False
        self.computations: Mapping[int, Computation] = {
            graph.index: Computation(executable, graph, _runner(executable.program, graph, config)) for graph in executable.program.graphs
        }
        self._metadata = executable.metadata
        reason = executable.program.attributes.get(PADDED_ON_HOST, "")
        if not reason and any(each.pads for each in self.computations.values()):
            reason = "the executable was compiled before graphs had a variable batch"
        if reason and config.numerics is Numerics.REAL:
            _logger.info("executable '%s': the host computes whole micro-batches for fewer rows: %s", self.name, reason)
        self._streams = streams
        self._gate = gate
        self._weight_anchors = {
            binding.anchor: executable.anchor(binding.anchor, TensorType.INPUT)
            for graph in executable.program.graphs
            for binding in graph.weights
        }

    def on_loaded(self) -> None:
        """Called when the device has loaded the program."""
        if self.is_loaded_once:
            self.run_load_programs()

    def load_anchors(self) -> list[Anchor]:
        """Inputs that load programs read: the weights, and further inputs that the metadata assigns to them."""
        return [
            each for each in self._metadata.inputs if each.name in self._weight_anchors or _runs_in(each, self._metadata.program_flow.load)
        ]

    def main_anchors(self) -> list[Anchor]:
        """Inputs and outputs that main programs use."""
        used = [anchor for each in self.computations.values() for anchor in (*each.inputs, *each.outputs)]
        return list({anchor.name: anchor for anchor in used}.values())

    def save_anchors(self) -> list[Anchor]:
        """Outputs that save programs write."""
        return [each for each in self._metadata.outputs if _runs_in(each, self._metadata.program_flow.save)]

    def run_load_programs(self) -> None:
        """Copies the weights to the device.

        Raises:
            SessionStopped: the session was stopped while a stream had no data.
        """
        self.is_loaded_once = True
        for anchor in self.load_anchors():
            stream = self._streams.input(anchor.name)
            data = _awaited(stream.fetch, self._gate)
            if data is None:
                raise SessionStopped(f"stopped while the load programs of '{self.name}' waited for '{anchor.name}'")
            # The user may change the memory after the transfer, so it is copied; tensor data of the file never changes.
            self.weights[anchor.name] = np.array(data)
            stream.release(None)

    def run_save_programs(self) -> None:
        """Copies weights from the device to the host: the output with PopART's handle `weight_d2h_<weight>` receives that weight.

        Raises:
            ApplicationRuntimeError: an output names no weight.
            SessionStopped: the session was stopped while a stream was full.
        """
        for anchor in self.save_anchors():
            weight = self.weights.get(anchor.handle.removeprefix(_SAVED_WEIGHT))
            if weight is None or weight.shape != anchor.tensor_info.shape:
                known = ", ".join(sorted(self.weights)) or "none"
                raise ApplicationRuntimeError(
                    f"save output '{anchor.name}' (handle {anchor.handle}) of '{self.name}' shows no weight on the device of shape "
                    f"{list(anchor.tensor_info.shape)}; there are {known}"
                )
            stream = self._streams.output(anchor.name)
            slot = _awaited(stream.slot, self._gate)
            if slot is None:
                raise SessionStopped(f"stopped while the save programs of '{self.name}' waited for room for '{anchor.name}'")
            np.copyto(slot, weight)
            stream.release(None)


def _runner(program: StaticProgram, graph: SubGraph, config: SessionConfig) -> GraphRunner | None:
    if config.numerics is Numerics.OFF:
        return None
    try:
        return GraphRunner(graph.onnx, config.threads, custom_op_libraries=config.custom_op_libraries)
    except NumericsError as error:
        needed = program.attributes.get(CUSTOM_LIBRARIES, "")
        hint = f"; it was compiled with custom operators: custom_op_libraries must name {needed}" if needed else ""
        raise ApplicationRuntimeError(f"sub-graph '{graph.name}': {error}{hint}") from error


def _runs_in(anchor: Anchor, programs: tuple[int, ...]) -> bool:
    return not frozenset(programs).isdisjoint(anchor.programs)


def _awaited(callback: Callable[[], Array | None], gate: Gate) -> Array | None:
    while True:
        seen = gate.changes
        data = callback()
        if data is not None or gate.is_stopping:
            return data
        gate.wait_for_change(seen, None)
