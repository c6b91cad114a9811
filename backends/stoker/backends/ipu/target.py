"""The IPU target of the `stoker` command. It compiles with `stoker.backends.ipu.compile` and runs with `stoker.backends.ipu.runtime`.

These two packages do not import each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.backends.api.clock import Clock, SystemClock
from stoker.backends.ipu.compile.sub_graph import batch_size
from stoker.backends.ipu.compile.target import IpuTarget
from stoker.backends.ipu.popef.schema import Anchor, PopefError
from stoker.backends.ipu.program import StaticProgram, SubGraph
from stoker.backends.ipu.runtime import DeviceManager, Executable, IpuRuntimeError, Session, SessionConfig, SimulatedSystem
from stoker.backends.ipu.runtime.executable import user_shape
from stoker.backends.ipu.timing import StepTiming, step_timing
from stoker.compiler.custom_libraries import library_paths
from stoker.compiler.errors import CompileError
from stoker.compiler.target import Measurement

Array = npt.NDArray[Any]

#: Upper bound of random integers. They may be indices into a small dimension.
_INTEGER_BOUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    """The result of a run.

    Attributes:
        program: The program that ran.
        calls: Calls of the main program. Those of a fused program cycle through its models.
        host_s: Measured seconds of one call on this host.
        models: Modelled times of one call, by name of the model in the file; each with its own number of rows.
    """

    program: StaticProgram
    calls: int
    host_s: float
    models: Mapping[str, StepTiming]


def run_with_random_data(
    path: Path, *, calls: int, host_budget_s: float = 5.0, clock: Clock | None = None, custom_op_libraries: tuple[Path, ...] = ()
) -> RandomRun:
    """Runs the file on a new simulated system: `calls` calls, or fewer if they would exceed the host's time budget.

    Every model of the file runs at least once.

    Raises:
        PopefError: the file cannot be read.
        IpuRuntimeError: it cannot be run.
    """
    clock = clock or SystemClock()
    executable = Executable(path)
    program = executable.program
    system = SimulatedSystem(executable.num_ipus, ipu_version=program.ipu_version, tiles_per_ipu=program.tiles_per_ipu)
    config = SessionConfig(custom_op_libraries=custom_op_libraries)
    with Session(executable, config, device_manager=DeviceManager(system)) as session:
        turns = _TurnLocks(program.graphs)
        generator = np.random.default_rng(0)
        for anchor in session.get_user_input_anchors():
            is_index = anchor == executable.index_anchor
            session.set_user_input_handler(anchor.name, turns.fill if is_index else _filler(anchor, generator))
        for anchor in session.get_user_output_anchors():
            session.set_user_output_handler(anchor.name, lambda memory: None)
        session.run_load_programs()
        done, begin = 0, clock.now_ns()
        while done < len(program.graphs) or (done < calls and (clock.now_ns() - begin) * 1e-9 < host_budget_s):
            turns.take(done)
            session.run_main_programs(1)
            session.wait()
            session.stop()
            if session.error is not None:
                raise session.error
            done += 1
        host_s = (clock.now_ns() - begin) * 1e-9 / done
    return RandomRun(
        program=program, calls=done, host_s=host_s, models={graph.name: _timing(executable, graph) for graph in program.graphs}
    )


def _timing(executable: Executable, graph: SubGraph) -> StepTiming:
    """Returns the modelled times of a call that runs `graph`.

    Fused models may have different batch sizes, so the rows come from the streams.
    """
    program = executable.program
    timing = step_timing(program, graph.index)
    if timing.rows or program.batch_axis >= 0:
        return timing
    anchors = {anchor.name: anchor for anchor in executable.metadata.anchors}
    inputs, outputs = ([user_shape(anchors[each.anchor]) for each in bindings] for bindings in (graph.inputs, graph.outputs))
    return replace(timing, rows=batch_size(inputs, outputs, 0) * program.batches_per_step)


class _TurnLocks:
    """Selects the next model of a fused program."""

    def __init__(self, graphs: tuple[SubGraph, ...]) -> None:
        self._graphs = graphs
        self._index = graphs[0].index

    def take(self, call: int) -> None:
        self._index = self._graphs[call % len(self._graphs)].index

    def fill(self, memory: Array) -> None:
        memory[...] = self._index


def _filler(anchor: Anchor, generator: np.random.Generator) -> Callable[[Array], None]:
    """Returns a handler that fills memory with the same random data each time."""
    shape, dtype = anchor.tensor_info.shape, anchor.tensor_info.data_type.numpy
    values = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, _INTEGER_BOUND, shape)
    data = np.asarray(values).astype(dtype)
    return lambda memory: np.copyto(memory, data)


class SimulatedIpuTarget(IpuTarget):
    """Compiles for a simulated IPU, and runs there what it compiled."""

    def measure(self, path: Path, *, calls: int = 100, custom_libraries: Sequence[str] = ()) -> Measurement:
        """Runs the PopEF file `path` with random data; the times are the modelled device's, not this host's.

        Raises:
            CompileError: the file cannot be read or run.
        """
        try:
            ran = run_with_random_data(path, calls=calls, custom_op_libraries=library_paths(custom_libraries))
        except (PopefError, IpuRuntimeError) as error:
            raise CompileError(f"running {path} failed: {error}") from error
        models = len(ran.models)
        found = {
            name: Measurement(
                batch_size=max(timing.rows, 1),
                calls=ran.calls // models + (at < ran.calls % models),
                latency_s=timing.latency_s,
                throughput=timing.rows_per_s,
                note=f"modelled for a simulated {ran.program.system}; this host took {ran.host_s * 1e3:.2f} ms",
            )
            for at, (name, timing) in enumerate(ran.models.items())
        }
        first = next(iter(found.values()))
        return replace(first, parts=found) if len(found) > 1 else first
