"""The GCU as the compiler's command finds it: `backends.gcu.compile` makes executables, here they are also run with random data."""

from backends.gcu.compile.target import GcuTarget


class SimulatedGcuTarget(GcuTarget):
    """Compiles for a simulated i20."""
