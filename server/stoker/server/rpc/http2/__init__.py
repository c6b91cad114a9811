"""gRPC over the server's own HTTP/2 implementation."""
