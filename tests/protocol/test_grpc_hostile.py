"""Hostile peers against a real server: floods, bombs, broken header tables, slow and half-open connections.

Whatever they do, the server answers others all the while, spends little time on them, and has its files back afterwards.
"""

import contextlib
import gzip
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from stoker.server.pb import grpc_service_pb2 as pb
from tests.fakes.h2_raw import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block,
    frame,
    setting,
    u32,
)
from tests.fakes.server_process import SAMPLE_MODELS, ServerProcess, running_server, wait_until

CALM = 11
HELLO = PREFACE + frame(SETTINGS) + frame(SETTINGS, 1)
FIELDS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ServerLive"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
METADATA = (*FIELDS[:2], (b":path", b"/inference.GRPCInferenceService/ServerMetadata"), *FIELDS[3:])
EMPTY = b"\0\0\0\0\0"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    limits = ("grpc_handshake_timeout_s=1", "header_timeout_s=1", "body_idle_timeout_s=1", "write_idle_timeout_s=1")
    flags = (f"--model_base_path={SAMPLE_MODELS}", *(f"--limit={limit}" for limit in limits))
    with running_server(*flags, at=tmp_path_factory.mktemp("server")) as server:
        yield server


class Peer:
    """A socket that sends arbitrary bytes, with a bound on its waits."""

    def __init__(self, server: ServerProcess, hello: bytes = HELLO) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.grpc_port), timeout=10)
        self._received = b""
        self.send(hello)

    def send(self, data: bytes) -> bool:
        """Sends as much as the server accepts; False once it has closed."""
        try:
            self.socket.sendall(data)
        except (ConnectionError, TimeoutError):
            return False
        return True

    def frames(self, wanted: int | None = None) -> list[tuple[int, bytes]]:
        """Frames up to one of type `wanted`, or to the end of the connection."""
        found: list[tuple[int, bytes]] = []
        with contextlib.suppress(ConnectionError):
            while True:
                while len(self._received) >= 9 and len(self._received) >= 9 + (size := int.from_bytes(self._received[:3], "big")):
                    found.append((self._received[3], self._received[9 : 9 + size]))
                    self._received = self._received[9 + size :]
                    if found[-1][0] == wanted:
                        return found
                if not (data := self.socket.recv(1 << 16)):
                    break
                self._received += data
        return found

    def end_code(self) -> int | None:
        """The error code of the GOAWAY that ends the connection; None: it was dropped without."""
        codes = [int.from_bytes(payload[4:8], "big") for kind, payload in self.frames() if kind == GOAWAY]
        return codes[-1] if codes else None

    def is_closed(self) -> bool:
        """Whether the server has closed; earlier bytes are read and dropped."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(10)
        return True

    def close(self) -> None:
        self.socket.close()


def cpu_s(server: ServerProcess) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_files(server: ServerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


def rss_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def unharmed(server: ServerProcess) -> Iterator[None]:
    """The server responds to other clients during and after the block, and has released its file descriptors after it."""
    files = open_files(server)
    with grpc.insecure_channel(server.grpc) as channel:
        alive = channel.unary_unary("/inference.GRPCInferenceService/ServerLive", None, pb.ServerLiveResponse.FromString)
        assert alive(b"", timeout=10).live
        yield
        assert alive(b"", timeout=10).live
    wait_until(lambda: open_files(server) <= files, what="the server to have its files back", patience_s=20)


def headers(stream_id: int, fields=FIELDS, flags: int = END_HEADERS | END_STREAM) -> bytes:
    return frame(HEADERS, flags, stream_id, block(fields))


def call(stream_id: int, fields=FIELDS) -> bytes:
    return headers(stream_id, fields, END_HEADERS) + frame(DATA, END_STREAM, stream_id, EMPTY)


FLOODS: dict[str, bytes] = {
    "rapid reset": b"".join(headers(2 * n + 1, flags=END_HEADERS) + frame(RST_STREAM, 0, 2 * n + 1, u32(8)) for n in range(10_000)),
    "SETTINGS": frame(SETTINGS) * 50_000,
    "PING": frame(PING, 0, 0, bytes(8)) * 50_000,
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(5)) * 50_000,
    "empty DATA": headers(1, flags=END_HEADERS) + frame(DATA, 0, 1) * 50_000,
    "WINDOW_UPDATE": headers(1, flags=END_HEADERS) + frame(WINDOW_UPDATE, 0, 1, u32(1)) * 50_000,
    "CONTINUATION": headers(1, flags=0) + frame(CONTINUATION, 0, 1, b"\x82" * 10) * 50_000,
    "empty CONTINUATION": headers(1, flags=0) + frame(CONTINUATION, 0, 1) * 50_000,
    "unknown frames": frame(0x77, 0, 0, b"x") * 50_000,
}


@pytest.mark.parametrize("flood", FLOODS)
def test_flood_ends_only_its_own_connection(flood: str, attacked: ServerProcess):
    with unharmed(attacked):
        peer = Peer(attacked)
        peer.send(FLOODS[flood])
        # Where the server has closed with bytes of ours unread, its GOAWAY may be lost to the reset that follows.
        assert peer.end_code() in (CALM, None)
        peer.close()


def test_hundred_thousand_metadata_fields_are_refused(attacked: ServerProcess):
    with unharmed(attacked):
        peer = Peer(attacked)
        fields = block((*FIELDS, *((b"x%d" % n, b"") for n in range(100_000))))
        parts = [fields[at : at + 16_384] for at in range(0, len(fields), 16_384)]
        sent = frame(HEADERS, 0, 1, parts[0]) + b"".join(frame(CONTINUATION, 0, 1, part) for part in parts[1:])
        peer.send(sent)
        assert peer.end_code() in (CALM, None)
        peer.close()


def test_hpack_bomb_is_refused(attacked: ServerProcess):
    """One large entry in the table, then thousands of references of one byte each."""
    with unharmed(attacked):
        peer = Peer(attacked)
        entry = b"\x40" + b"\x01x" + b"\x7f\xa1\x1e" + b"v" * 4000
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block() + entry + b"\xbe" * 12_000))
        assert peer.frames(RST_STREAM)[-1][1] == u32(CALM)
        assert peer.end_code() is None
        peer.close()


def test_broken_header_table_affects_only_its_connection(attacked: ServerProcess):
    with unharmed(attacked):
        valid = Peer(attacked)
        for broken in (b"\xff\xff\xff\xff\xff\xff", b"\xfe", b"\x40\x01x\x7f", b"\x3f\xe1\xff\xff\xff\x7f", b"\x00\x81\xff\x01a"):
            peer = Peer(attacked)
            peer.send(call(1) + frame(HEADERS, END_HEADERS | END_STREAM, 3, broken) + call(5))
            assert peer.end_code() in (9, CALM, None)
            peer.close()
        valid.send(call(1, METADATA))
        assert valid.frames(DATA)[-1][1].startswith(b"\0\0\0\0")
        valid.close()


def test_compression_bomb_is_not_decompressed(attacked: ServerProcess):
    """512 MiB of zeros, half a MiB on the wire."""
    with unharmed(attacked):
        before = rss_bytes(attacked)
        peer = Peer(attacked)
        bomb = gzip.compress(bytes(512 << 20), 6)
        peer.send(headers(1, (*FIELDS, (b"grpc-encoding", b"gzip")), END_HEADERS))
        body = b"\1" + len(bomb).to_bytes(4, "big") + bomb
        for at in range(0, len(body), 16_384):
            peer.send(frame(DATA, END_STREAM if at + 16_384 >= len(body) else 0, 1, body[at : at + 16_384]))
        # RESOURCE_EXHAUSTED, the message of a control request being larger than it may be.
        assert b"8" in peer.frames(HEADERS)[-1][1]
        peer.close()
        assert rss_bytes(attacked) - before < 64 << 20


SLOW: dict[str, bytes] = {
    "nothing": b"",
    "part of the preface": PREFACE[:12],
    "preface without SETTINGS": PREFACE,
    "a header block that never ends": HELLO + headers(1, flags=0),
    "part of a frame": HELLO + headers(1)[:12],
}


@pytest.mark.parametrize("beginning", SLOW)
def test_half_open_handshakes_are_closed(beginning: str, attacked: ServerProcess):
    with unharmed(attacked):
        peers = [Peer(attacked, SLOW[beginning]) for _ in range(200)]
        wait_until(lambda: all(peer.is_closed() for peer in peers), what="the server to close them", patience_s=20)
        for peer in peers:
            peer.close()


def test_preface_and_headers_sent_byte_by_byte_time_out(attacked: ServerProcess):
    with unharmed(attacked):
        peers = [Peer(attacked, b"") for _ in range(50)]
        until_s = time.monotonic() + 20
        data = iter(PREFACE + frame(SETTINGS))
        while not all(peer.is_closed() for peer in peers):
            assert time.monotonic() < until_s
            byte = bytes([next(data)])
            for peer in peers:
                peer.send(byte)
            time.sleep(0.1)
        for peer in peers:
            peer.close()


def test_request_with_a_stalled_body_is_refused(attacked: ServerProcess):
    with unharmed(attacked):
        peers = [Peer(attacked) for _ in range(50)]
        for peer in peers:
            peer.send(headers(1, flags=END_HEADERS) + frame(DATA, 0, 1, b"\0\0\0\0\x10abc"))
        for peer in peers:
            assert b"4" in peer.frames(HEADERS)[-1][1]
            peer.close()


def test_unread_responses_end_the_connection(attacked: ServerProcess):
    """A receive buffer of the minimum size, windows of the maximum: unread bytes stay with the server, which bounds them."""
    with unharmed(attacked):
        before = rss_bytes(attacked)
        peers = []
        for _ in range(20):
            peer = Peer(attacked, b"")
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.socket.settimeout(0.2)
            peer.send(PREFACE + frame(SETTINGS, 0, 0, setting(4, (1 << 31) - 1)) + frame(WINDOW_UPDATE, 0, 0, u32(1 << 30)))
            peers.append(peer)
        asked = b"".join(call(2 * n + 1, METADATA) for n in range(5_000))
        for peer in peers:
            peer.send(asked)
        assert rss_bytes(attacked) - before < 128 << 20
        wait_until(lambda: not any(peer.send(b"\0") for peer in peers), what="the server to close them", patience_s=20)
        for peer in peers:
            peer.close()


def test_closed_windows_end_the_connection(attacked: ServerProcess):
    with unharmed(attacked):
        peers = [Peer(attacked, PREFACE + frame(SETTINGS, 0, 0, setting(4, 0))) for _ in range(20)]
        for peer in peers:
            peer.send(b"".join(call(2 * n + 1, METADATA) for n in range(100)))
        for peer in peers:
            assert DATA not in {kind for kind, _ in peer.frames()}
            peer.close()


def test_streams_above_the_bound_are_refused(attacked: ServerProcess):
    with unharmed(attacked):
        peer = Peer(attacked)
        peer.send(b"".join(headers(2 * n + 1, flags=END_HEADERS) for n in range(1001)))
        assert peer.frames(RST_STREAM)[-1][1] == u32(7)
        peer.close()
