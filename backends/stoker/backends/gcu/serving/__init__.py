"""Serving of `model.exec` files: their tensors as clients see them, the simulated cards, and the instances."""
