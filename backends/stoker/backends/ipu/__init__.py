"""Graphcore IPU: the PopEF container, its compiler, simulated devices that run it, and the backend that serves it."""
