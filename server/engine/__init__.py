"""The room `engine`."""
