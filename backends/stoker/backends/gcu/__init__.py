"""Enflame GCU: `model.exec` files, their compiler, a simulated i20 card to run them on, and the backend that serves them."""
