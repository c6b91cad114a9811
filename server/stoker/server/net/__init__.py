"""Transports without gRPC and without models: listeners, TLS, HTTP/1.1 and HTTP/2."""
