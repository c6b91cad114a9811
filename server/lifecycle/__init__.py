"""The room `lifecycle`."""
