"""Transports: listening sockets, TLS, HTTP/1.1 and HTTP/2. No gRPC, no model; `README.md` has the theory of operation."""
