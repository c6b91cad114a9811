"""HTTP/2 (RFC 9113) as a server, without sockets, threads, clock or event loop: bytes in, events out."""
