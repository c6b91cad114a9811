"""The room `frontends`."""
