"""Shared by the backends of devices, simulated or real: the interface to a runtime, options, leases, counters and metrics."""
