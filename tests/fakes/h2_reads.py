"""A connection of the gRPC port without a socket: reads go where it wants them, and what it writes is kept."""

from typing import Any

from server.frontends.h2.protocol import GrpcProtocol


def read(connection: GrpcProtocol, data: bytes, most: int = 1 << 20) -> None:
    """Gives `data` to `connection` as a transport does, in reads of `most` bytes that the next one writes over."""
    at = 0
    while at < len(data):
        room = connection.get_buffer(-1)
        size = min(len(room), len(data) - at, most)
        room[:size] = data[at : at + size]
        connection.buffer_updated(size)
        at += size


class MemoryTransport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
