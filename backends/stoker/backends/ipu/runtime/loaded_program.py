"""`LoadedProgram`: a session's executable as a device holds it, with the weights that its load programs copied."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.ipu.popef.schema import Anchor, TensorType
from stoker.backends.ipu.program import CUSTOM_LIBRARIES, StaticProgram, SubGraph
from stoker.backends.ipu.runtime.computation import Computation
from stoker.backends.ipu.runtime.errors import ApplicationRuntimeError, SessionStopped
from stoker.backends.ipu.runtime.executable import Executable
from stoker.backends.ipu.runtime.gate import Gate
from stoker.backends.ipu.runtime.session_config import SessionConfig
from stoker.backends.ipu.runtime.tensor_manager import TensorManager
from stoker.backends.ipu.timing import load_time_s
from stoker.backends.simulated.numerics import GraphRunner, Numerics, NumericsError

Array = npt.NDArray[Any]
#: How PopART calls the stream that downloads a weight [C].
_SAVED_WEIGHT = "weight_d2h_"


class LoadedProgram:
    """A loaded program, with the state that the device keeps of it.

    Attributes:
        name: Of the executable.
        weights: On the device, by anchor; replaced whenever load programs run.
        computations: By the index that selects them.
        load_s: Modelled time to load code and weights.
        reloads_when_evicted: See `SessionConfig`.
        is_loaded_once: Whether the user has run the load programs, so that a reload runs them too.
    """

    def __init__(self, executable: Executable, streams: TensorManager, gate: Gate, config: SessionConfig) -> None:
        """Prepares every sub-graph.

        Raises:
            ApplicationRuntimeError: a sub-graph cannot be computed here; names it.
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
        """Inputs that load programs read: the weights, and whatever else the metadata gives to them."""
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
        """Brings the weights to the device.

        Raises:
            SessionStopped: stopped while a stream had nothing to give.
        """
        self.is_loaded_once = True
        for anchor in self.load_anchors():
            stream = self._streams.input(anchor.name)
            data = _awaited(stream.fetch, self._gate)
            if data is None:
                raise SessionStopped(f"stopped while the load programs of '{self.name}' waited for '{anchor.name}'")
            # The host's memory is the user's again after the transfer; tensor data of the file never changes.
            self.weights[anchor.name] = np.array(data)
            stream.release(None)

    def run_save_programs(self) -> None:
        """Brings what is on the device to the host: the output with PopART's handle `weight_d2h_<weight>` shows that weight.

        Raises:
            ApplicationRuntimeError: an output shows no weight.
            SessionStopped: stopped while a stream was full.
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
