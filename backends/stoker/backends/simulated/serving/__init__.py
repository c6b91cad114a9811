"""What the backends of simulated devices share when they serve: options, pool, loaded executables, counters and metrics."""
