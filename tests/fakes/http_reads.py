"""The bytes of an HTTP client, as an event loop passes them to the connection."""

from stoker.server.net.http1.connection import HttpConnection


def arrive(connection: HttpConnection, data: bytes | memoryview) -> None:
    """Delivers `data` in as few reads as possible, each into the buffer of the connection."""
    at = 0
    while at < len(data):
        receive_buffer = connection.get_buffer(-1)
        size = min(len(receive_buffer), len(data) - at)
        receive_buffer[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size
