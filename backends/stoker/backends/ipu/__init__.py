"""Graphcore IPU: the PopEF container, compiling to it, and running it on simulated devices."""
