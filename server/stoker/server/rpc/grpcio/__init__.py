"""The tables of methods on grpcio's server."""
