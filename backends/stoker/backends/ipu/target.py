"""The IPU as the compiler's command finds it: `stoker.backends.ipu.compile` makes executables, `stoker.backends.ipu.runtime` runs them.

The two do not know each other; here they meet.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stoker.backends.ipu.compile.target import IpuTarget
from stoker.backends.ipu.measuring import run_with_random_data
from stoker.backends.ipu.popef.errors import PopefError
from stoker.backends.ipu.runtime import IpuRuntimeError
from stoker.compiler.custom_libraries import library_paths
from stoker.compiler.errors import CompileError
from stoker.compiler.target import Measurement


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
