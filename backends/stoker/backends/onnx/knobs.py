"""Triton's ONNX Runtime settings: config.pbtxt `parameters` and `optimization.graph.level`, read into `SessionKnobs`."""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from stoker.backends.api.candidate import Violation, parameter_path, reject
from stoker.backends.onnx.provider_options import CUDA_PARAMETERS

#: More threads than any host has cores; beyond it the number is a mistake, and creating them could take the process down.
MAX_THREADS = 1024

T = TypeVar("T")

_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_ARENA = re.compile("cpu:0|gpu:[0-9]{1,2}")
_GROUP = r"(?:[0-9]{1,5}-[0-9]{1,5}|[0-9]{1,5}(?:,[0-9]{1,5})*)"


@dataclass(frozen=True, slots=True)
class _Text:
    """Values that a `session.*` entry takes: those that `pattern` matches, described by `allowed`."""

    pattern: re.Pattern[str]
    allowed: str


_FLAG = _Text(re.compile("[01]"), "0 or 1")
_COUNT = _Text(re.compile("[0-9]{1,9}"), "a whole number of at most 9 digits")

#: `session.*` entries that are handed to ONNX Runtime, with the values they take. Entries that name files or folders, profile, or change
#: what kind of file is loaded are left out on purpose: a model's configuration does not reach outside its version. So is
#: set_denormal_as_zero: it takes effect for the process's first session only, on whatever thread makes it, and then changes the arithmetic
#: of all that runs there.
SESSION_ENTRIES: dict[str, _Text] = {
    "session.intra_op.allow_spinning": _FLAG,
    "session.inter_op.allow_spinning": _FLAG,
    "session.intra_op.spin_duration_us": _COUNT,
    "session.inter_op.spin_duration_us": _COUNT,
    "session.force_spinning_stop": _FLAG,
    "session.intra_op_thread_affinities": _Text(
        re.compile(f"{_GROUP}(?:;{_GROUP})*"), "for each thread but the first its processors, such as 1,2;3,4 or 1-2;3-4"
    ),
    "session.dynamic_block_base": _COUNT,
    "session.disable_prepacking": _FLAG,
    "session.use_device_allocator_for_initializers": _FLAG,
    "session.disable_quant_qdq": _FLAG,
    "session.disable_double_qdq_remover": _FLAG,
    "session.enable_quant_qdq_cleanup": _FLAG,
    "session.qdq_matmulnbits_accuracy_level": _Text(re.compile("[0-4]"), "0 to 4"),
    "session.x64quantprecision": _FLAG,
    "session.disable_aot_function_inlining": _FLAG,
    "session.use_deterministic_compute": _FLAG,
}

#: Threads that wait for work by spinning find it sooner, and take the core from whoever else needs it: the server's own loop, the other
#: models. Measured with 2 threads on 2 cores. ResNet-50, quiet machine, images/s at batch 1 and 8: unbounded 38 and 43, 50 us 38 and 43,
#: none 35 and 41. Beside a process that takes a fifth of a core: unbounded 6-10, 50 us 14, none 11-16. A small network called every 2 ms
#: takes 2.4 ms of CPU time a call unbounded, and 0.3 to 0.5 ms else. So: short, where the runtime can, and none where it cannot.
_BOUNDED_SPINNING = {"session.intra_op.spin_duration_us": "50", "session.inter_op.spin_duration_us": "50"}
_NO_SPINNING = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
#: Operators are cut into shrinking pieces that idle threads take, not into one equal piece for each thread: where the server's loop takes a
#: core for a moment, the others would wait for the piece that lies on it. ResNet-50 served over gRPC, batches of 8, two threads on two
#: cores, windows in turn: 3 % more images/s (five pairs, 1.00 to 1.13); raw runs on a quiet machine are as fast with it as without.
_DYNAMIC_BLOCKS = {"session.dynamic_block_base": "4"}

PARAMETER_KEYS = frozenset(
    {
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "enable_mem_arena",
        "enable_mem_pattern",
        "memory.enable_memory_arena_shrinkage",
        *SESSION_ENTRIES,
        *CUDA_PARAMETERS,
    }
)


class GraphOptimization(enum.Enum):
    """How far ONNX Runtime rewrites the graph."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    ALL = "all"


_GRAPH_LEVELS = {-1: GraphOptimization.BASIC, 1: GraphOptimization.EXTENDED, 2: GraphOptimization.NONE, 0: GraphOptimization.ALL}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKnobs:
    """How a session runs.

    Attributes:
        intra_op_threads: Threads that share one operator.
        are_threads_free: Whether there are several and nothing that is written says how many, so that fewer may be taken.
        inter_op_threads: Operators that may run side by side; counts only if `parallel`.
        parallel: Whether independent operators run side by side.
        mem_arena: Whether freed memory is kept for the next run.
        mem_pattern: Whether memory is planned ahead from the shapes of earlier runs.
        shrink_arena: The arenas that give memory back after every run, such as `cpu:0`; empty: none.
        graph: How far the graph is rewritten.
        entries: `session.*` configuration entries.
    """

    intra_op_threads: int
    are_threads_free: bool = False
    inter_op_threads: int = 1
    parallel: bool = False
    mem_arena: bool = True
    mem_pattern: bool = True
    shrink_arena: str = ""
    graph: GraphOptimization = GraphOptimization.ALL
    entries: Mapping[str, str] = field(default_factory=dict)


def knob_violations(parameters: Mapping[str, str], graph_level: int | None) -> tuple[Violation, ...]:
    """Every setting whose value is not among those allowed."""
    reader = _Reader(parameters)
    reader.knobs(graph_level, cpu_threads=1, bounds_spinning=True)
    return tuple(reader.violations)


def read_knobs(parameters: Mapping[str, str], graph_level: int | None, cpu_threads: int, *, bounds_spinning: bool = True) -> SessionKnobs:
    """Reads the settings; what is not written is chosen for serving.

    `intra_op_thread_count` is `cpu_threads` where unset or 0. ONNX Runtime's own default, every core of the machine, knows neither the
    container's quota nor the other instances. `inter_op_thread_count` matters in parallel mode only, and is `cpu_threads` there.
    `bounds_spinning`: whether this ONNX Runtime can limit how long idle threads spin.

    Raises:
        ModelLoadError: values are not among those allowed; the message names each parameter and what it takes.
    """
    reader = _Reader(parameters)
    knobs = reader.knobs(graph_level, cpu_threads, bounds_spinning)
    reject(reader.violations)
    return knobs


class _Reader:
    """Reads settings, and goes on after a bad one with its default, so that all errors are reported at once."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self.violations: list[Violation] = []

    def knobs(self, graph_level: int | None, cpu_threads: int, bounds_spinning: bool) -> SessionKnobs:
        parallel = self._read("execution_mode", {"0": False, "1": True}.get, "0 (sequential) or 1 (parallel)", default=False)
        threads = f"a whole number from 0 (the default) to {MAX_THREADS}"
        intra = self._read("intra_op_thread_count", _thread_count, threads, default=0)
        inter = self._read("inter_op_thread_count", _thread_count, threads, default=0)
        arena = self._read("enable_mem_arena", _boolean, "0 or 1", default=True)
        pattern = self._read("enable_mem_pattern", _boolean, "0 or 1", default=True)
        shrink_key = "memory.enable_memory_arena_shrinkage"
        shrink = self._read(shrink_key, _arenas, "cpu:0, gpu:N, or both with a semicolon", default="")
        if "cpu:0" in shrink and not arena:
            self.violations.append(Violation(parameter_path(shrink_key), "needs the arena, which 'enable_mem_arena' turns off"))
        if graph_level is not None and graph_level not in _GRAPH_LEVELS:
            text = f"takes -1 (basic), 1 (extended), 2 (none), or 0 or nothing (all), not {graph_level}"
            self.violations.append(Violation("optimization.graph.level", text))
        return SessionKnobs(
            intra_op_threads=intra or cpu_threads,
            are_threads_free=cpu_threads > 1 and not (intra or parallel or "session.intra_op_thread_affinities" in self._parameters),
            inter_op_threads=inter or (cpu_threads if parallel else 1),
            parallel=parallel,
            mem_arena=arena,
            mem_pattern=pattern,
            shrink_arena=shrink,
            graph=GraphOptimization.ALL if graph_level is None else _GRAPH_LEVELS.get(graph_level, GraphOptimization.ALL),
            entries=self._session_entries(bounds_spinning),
        )

    def _session_entries(self, bounds_spinning: bool) -> dict[str, str]:
        entries = _DYNAMIC_BLOCKS | (_BOUNDED_SPINNING if bounds_spinning else _NO_SPINNING)
        for pool in ("intra_op", "inter_op"):
            # A written wish about spinning is a wish about all of it.
            if f"session.{pool}.allow_spinning" in self._parameters:
                entries.pop(f"session.{pool}.spin_duration_us", None)
        for key, values in SESSION_ENTRIES.items():
            if key in self._parameters:
                value = self._parameters[key].strip()
                if not values.pattern.fullmatch(value):
                    self._reject(key, values.allowed)
                entries[key] = value
        return entries

    def _read(self, key: str, parse: Callable[[str], T | None], allowed: str, *, default: T) -> T:
        if key not in self._parameters:
            return default
        value = parse(self._parameters[key].strip().lower())
        if value is None:
            self._reject(key, allowed)
            return default
        return value

    def _reject(self, key: str, allowed: str) -> None:
        self.violations.append(Violation(parameter_path(key), f"takes {allowed}, not '{self._parameters[key][:40]}'"))


def _boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text)


def _arenas(text: str) -> str | None:
    """`text` if it is empty or names arenas, as in `cpu:0;gpu:0`."""
    is_list = all(_ARENA.fullmatch(entry) for entry in text.split(";", 64))
    return text if is_list or not text else None


def _thread_count(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return int(text) if is_number and int(text) <= MAX_THREADS else None
