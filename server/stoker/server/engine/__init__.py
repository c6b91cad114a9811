"""The engine: the server's interface for all frontends."""
