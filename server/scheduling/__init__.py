"""The room `scheduling`."""
