"""A TLS client that sends one message and no close_notify."""

import socket
import ssl
from pathlib import Path


def silent_client(port: int, ca: Path, protocol: str, greeting: bytes) -> ssl.SSLSocket:
    """An open connection: `greeting` was sent and a response has begun. It then sends nothing. Blocks."""
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols([protocol])
    client = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="localhost")
    client.sendall(greeting)
    client.recv(1)
    return client
