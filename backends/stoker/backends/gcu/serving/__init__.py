"""Serving `model.exec` files: what they offer to clients, the simulated cards that run them, and the instances in front of both."""
