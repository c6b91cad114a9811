"""The room `execution`."""
