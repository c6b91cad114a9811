"""A connection of the gRPC port without a socket: reads fill its buffers, and its output is recorded."""

import asyncio
from typing import Any

from stoker.server.net.receiver import Receiver
from stoker.server.rpc.http2.connection import GrpcProtocol
from stoker.server.rpc.http2.connection_context import READ_BYTES


def read(connection: GrpcProtocol, data: bytes, most: int = 1 << 20) -> int:
    """Gives `data` to `connection` as its transport does, in reads of `most` bytes that the next one writes over; returns their number."""
    at = number = 0
    while at < len(data):
        protocol = connection.transport.get_protocol()
        if isinstance(protocol, asyncio.BufferedProtocol):
            receive_buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(receive_buffer), len(data) - at, most)
            receive_buffer[:size] = data[at : at + size]
            protocol.buffer_updated(size)
        else:
            size = min(READ_BYTES, len(data) - at, most)
            connection.data_received(data[at : at + size])
        at += size
        number += 1
    return number


class ReadTransport:
    """Tracks the receiver of reads: the connection itself, until it names another."""

    def __init__(self) -> None:
        self._protocol: asyncio.BaseProtocol | Receiver | None = None

    def get_protocol(self) -> asyncio.BaseProtocol | Receiver | None:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol | Receiver) -> None:
        self._protocol = protocol


class MemoryTransport(ReadTransport):
    """Records the written bytes."""

    def __init__(self) -> None:
        super().__init__()
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
