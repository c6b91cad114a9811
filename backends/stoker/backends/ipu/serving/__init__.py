"""Serving of PopEF files: their tensors as clients see them, the simulated IPUs, and the instances."""
