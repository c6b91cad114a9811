"""The GCU as the compiler's command finds it: `stoker.backends.gcu.compile` makes executables, `stoker.backends.gcu.runtime` runs them.

The two do not know each other; here they meet.
"""

from collections.abc import Sequence
from pathlib import Path

from stoker.backends.gcu.compile.target import GcuTarget
from stoker.backends.gcu.executable import ExecutableError
from stoker.backends.gcu.measuring import run_with_random_data
from stoker.backends.gcu.runtime import StatusError
from stoker.compiler.errors import CompileError
from stoker.compiler.target import Measurement


class SimulatedGcuTarget(GcuTarget):
    """Compiles for a simulated i20, and runs there what it compiled."""

    def measure(self, path: Path, *, calls: int = 100, custom_libraries: Sequence[str] = ()) -> Measurement:
        """Runs the largest batch of the file `path` with random data; the times are the modelled card's, not this host's.

        Raises:
            CompileError: the file cannot be read or run.
        """
        try:
            ran = run_with_random_data(path, calls=calls)
        except (ExecutableError, StatusError) as error:
            raise CompileError(f"running {path} failed: {error}") from error
        batch = ran.executable.max_batch_size
        return Measurement(
            batch_size=batch,
            calls=ran.calls,
            latency_s=ran.latency_s,
            throughput=batch / ran.latency_s,
            note=f"modelled for a simulated {ran.executable.card}, {ran.clusters} cluster(s); this host took {ran.host_s * 1e3:.2f} ms",
        )
