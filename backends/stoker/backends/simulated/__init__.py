"""The parts that simulated devices share: pacing, host link, numerics, faults."""
