"""What simulated devices share: pacing, host link, numerics, faults."""
