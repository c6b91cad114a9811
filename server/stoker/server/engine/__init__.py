"""The engine: the one face of the server towards its fronts."""
