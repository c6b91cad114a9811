"""The serving code that the backends of simulated devices share: options, pool, loaded executables, counters and metrics."""
