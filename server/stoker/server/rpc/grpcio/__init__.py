"""Serves method tables on grpcio's server."""
