"""The room `config`."""
