"""The room `observability`."""
