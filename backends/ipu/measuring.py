"""Runs a PopEF file with random data, to see that it runs, and says how fast its device would be."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.api.clock import Clock, SystemClock
from backends.ipu.popef.schema import Anchor
from backends.ipu.program import StaticProgram, SubGraph
from backends.ipu.runtime import DeviceManager, Executable, Session, SessionConfig, SimulatedSystem
from backends.ipu.timing import step_timing

Array = npt.NDArray[Any]

#: Random whole numbers are below this, since they may be indices into something small.
_INTEGER_BOUND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomRun:
    """What came of it.

    Attributes:
        program: What ran.
        calls: Calls of the main program; those of a fused one go to its models in turn.
        host_s: What this host needed for one, in seconds.
        latency_s, rows_per_s: What the model of the device says of one call, the mean over its models.
    """

    program: StaticProgram
    calls: int
    host_s: float
    latency_s: float
    rows_per_s: float


def run_with_random_data(
    path: Path, *, calls: int, host_budget_s: float = 5.0, clock: Clock | None = None, custom_op_libraries: tuple[Path, ...] = ()
) -> RandomRun:
    """Runs the file on a simulated system of its own: `calls` calls, or fewer where they would take this host longer than its budget.

    Every model of the file runs once at least.

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
        turns = _Turns(program.graphs)
        generator = np.random.default_rng(0)
        for anchor in session.get_user_input_anchors():
            is_index = anchor == executable.index_anchor
            session.set_user_input_handler(anchor.name, turns.fill if is_index else _filler(anchor, generator))
        for anchor in session.get_user_output_anchors():
            session.set_user_output_handler(anchor.name, _ignore)
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
    timings = [step_timing(program, graph.index) for graph in program.graphs]
    return RandomRun(
        program=program,
        calls=done,
        host_s=host_s,
        latency_s=sum(each.latency_s for each in timings) / len(timings),
        rows_per_s=sum(each.rows_per_s for each in timings) / len(timings),
    )


class _Turns:
    """Says which model of a fused program is next."""

    def __init__(self, graphs: tuple[SubGraph, ...]) -> None:
        self._graphs = graphs
        self._index = graphs[0].index

    def take(self, call: int) -> None:
        self._index = self._graphs[call % len(self._graphs)].index

    def fill(self, memory: Array) -> None:
        memory[...] = self._index


class _Filler:
    """Gives the same random data each time."""

    def __init__(self, data: Array) -> None:
        self._data = data

    def __call__(self, memory: Array) -> None:
        memory[...] = self._data


def _filler(anchor: Anchor, generator: np.random.Generator) -> _Filler:
    shape, dtype = anchor.tensor_info.shape, anchor.tensor_info.data_type.numpy
    values = generator.standard_normal(shape) if dtype.kind == "f" else generator.integers(0, _INTEGER_BOUND, shape)
    return _Filler(np.asarray(values).astype(dtype))


def _ignore(memory: Array) -> None:
    pass
