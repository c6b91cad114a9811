"""gRPC over our own HTTP/2 server."""
