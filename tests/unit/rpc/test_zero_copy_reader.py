"""The protocol that is installed while large messages arrive passes all calls on, and is installed once."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.server.net.receiver import Receiver
from stoker.server.rpc.http2.zero_copy_reader import SMALL_READS, ZeroCopyReader
from tests.fakes.h2_reads import MemoryTransport


class Transport(MemoryTransport):
    """Keeps each protocol that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[asyncio.BaseProtocol | Receiver] = []

    def set_protocol(self, protocol: asyncio.BaseProtocol | Receiver) -> None:
        self.given.append(protocol)


class Connection:
    """Records its calls."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def rig() -> SimpleNamespace:
    connection = Connection()
    return SimpleNamespace(connection=connection, given=connection.transport.given, reads=ZeroCopyReader(cast("Any", connection)))


def test_reader_passes_all_calls_on_to_the_connection(rig: SimpleNamespace):
    lost = ConnectionResetError()
    rig.reads.get_buffer(-1)
    rig.reads.buffer_updated(7)
    rig.reads.pause_writing()
    rig.reads.resume_writing()
    rig.reads.connection_lost(lost)
    assert rig.connection.calls == [("receive_buffer",), ("filled", 7), ("pause_writing",), ("resume_writing",), ("connection_lost", lost)]
    # RFC 9113, section 9.1: a peer that sends no more gets nothing either; the transport closes.
    assert not rig.reads.eof_received()


def test_reader_is_installed_and_removed_once(rig: SimpleNamespace):
    for _ in range(2):
        rig.reads.begin()
        rig.reads.begin()
        assert rig.given == [rig.reads]
        for _ in range(2 * SMALL_READS):
            rig.reads.note_small_read()
        assert rig.given == [rig.reads, rig.connection]
        rig.given.clear()


def test_large_message_restarts_the_count_of_small_reads(rig: SimpleNamespace):
    rig.reads.begin()
    for _ in range(3):
        for _ in range(SMALL_READS):
            rig.reads.note_small_read()
        rig.reads.begin()
    assert rig.given == [rig.reads]


def test_closing_transport_keeps_its_protocol(rig: SimpleNamespace):
    rig.connection.transport.is_closed = True
    rig.reads.begin()
    assert rig.given == []
    rig.connection.transport.is_closed = False
    rig.reads.begin()
    rig.connection.transport.is_closed = True
    for _ in range(2 * SMALL_READS):
        rig.reads.note_small_read()
    assert rig.given == [rig.reads]
