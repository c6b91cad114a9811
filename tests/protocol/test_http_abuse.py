"""Clients that mean harm, at byte level, against a real server: chunk storms, giants, smugglers, the slow, and the greedy."""

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.fakes.server_process import PATIENCE_S, SAMPLE_MODELS, ServerProcess, running_server, wait_until

MIB = 1 << 20
INFER = b"/v2/models/simple/infer"
INDEX = b"/v2/repository/index"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    at = tmp_path_factory.mktemp("abused")
    with running_server(f"--model_base_path={SAMPLE_MODELS}", "--load-model=simple", "--model-control-mode=explicit", at=at) as running:
        yield running


def connected(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.http_port), timeout=20)


def sent_and_answered(server: ServerProcess, *pieces: bytes) -> bytes:
    """Everything received until the server closes, although it may stop reading before everything is sent."""
    with closing(connected(server)) as peer:
        try:
            for piece in pieces:
                peer.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        got = b""
        try:
            while piece := peer.recv(65_536):
                got += piece
        except ConnectionResetError:
            pass
        return got


def resident_bytes(server: ServerProcess) -> int:
    fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files(server: ServerProcess) -> int:
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


def head(method: bytes, path: bytes, *fields: bytes) -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: a\r\n" % (method, path) + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def infer_body() -> bytes:
    tensors = [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [1, 16], "data": list(range(16))} for i in (0, 1)]
    return json.dumps({"inputs": tensors}).encode()


def infer_request() -> bytes:
    body = infer_body()
    return head(b"POST", INFER, b"Content-Length: %d" % len(body)) + body


@pytest.mark.parametrize("path", [INFER, INDEX])
def test_storm_of_chunks_gets_413_and_leaks_no_memory(server: ServerProcess, path: bytes):
    storm = head(b"POST", path, b"Transfer-Encoding: chunked"), b"1\r\nA\r\n" * 1_000_000
    # What answers management calls is loaded for the first of them, and a storm is refused before that has ended.
    assert server.get("/v2")[0] == 200
    for _ in range(3):
        assert sent_and_answered(server, *storm).startswith(b"HTTP/1.1 413 ")
    before = resident_bytes(server)
    for _ in range(20):
        assert sent_and_answered(server, *storm).startswith(b"HTTP/1.1 413 ")
        assert server.get("/v2/health/live")[0] == 200
    assert resident_bytes(server) - before < 2 * MIB


@pytest.mark.parametrize("path", [INFER, INDEX])
@pytest.mark.parametrize(
    ("fields", "rest", "status"),
    [
        ((b"Content-Length: 10737418240",), b"", 413),
        ((b"Transfer-Encoding: chunked",), b"100000\r\n" + bytes(1 << 20) + b"\r\n", 413),
        ((b"A: " + b"b" * (64 << 20),), b"", 431),
        ((b"A: b",) * 10_000, b"", 431),
    ],
    ids=["declared", "chunked", "header", "headers"],
)
def test_oversized_requests_are_refused_before_memory_is_reserved(
    server: ServerProcess, path: bytes, fields: tuple[bytes, ...], rest: bytes, status: int
):
    server.get("/v2")  # loads what the first request of its kind loads
    before = resident_bytes(server)
    # A body that is answered early is dropped up to the cap, and then cut off.
    got = sent_and_answered(server, head(b"POST", path, *fields), *[rest] * 260)
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert got.count(b"HTTP/1.1 ") == 1
    wait_until(lambda: resident_bytes(server) - before < 4 * MIB, what="the memory to be given back")


def test_oversized_target_is_refused(server: ServerProcess):
    assert sent_and_answered(server, head(b"GET", b"/" + b"x" * MIB)).startswith(b"HTTP/1.1 414 ")


HIDDEN = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
SMUGGLED = [
    head(b"POST", INFER, b"Content-Length: 6", b"Transfer-Encoding: chunked") + b"0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Content-Length: 0", b"Content-Length: 41") + HIDDEN,
    head(b"POST", INFER, b"Content-Length: 41", b"Content-Length: 41") + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: xchunked") + b"0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding : chunked") + b"0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding:\r\n chunked") + b"0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"A: b\nTransfer-Encoding: chunked") + b"0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: chunked") + b"0x5\r\nabcde\r\n0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: chunked") + b"+5\r\nabcde\r\n0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: chunked") + b"5\nabcde\n0\n\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: chunked") + b"5\r\nabcdeXX0\r\n\r\n" + HIDDEN,
    head(b"POST", INFER, b"Transfer-Encoding: chunked") + b"0\r\n" + HIDDEN,
    b"POST " + INFER + b" HTTP/1.1\nHost: a\nContent-Length: 0\n\n" + HIDDEN,
]


@pytest.mark.parametrize("wire", SMUGGLED)
def test_ambiguous_message_length_gets_one_400_and_ends_the_connection(server: ServerProcess, wire: bytes):
    got = sent_and_answered(server, wire)
    assert got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"HTTP/1.1 ") == 1


def test_request_smuggled_in_a_body_is_body_data(server: ServerProcess):
    with closing(connected(server)) as peer:
        behind = head(b"GET", b"/v2/health/ready", b"Connection: close")
        peer.sendall(head(b"POST", INFER, b"Content-Length: %d" % len(HIDDEN)) + HIDDEN + behind)
        got = b""
        while piece := peer.recv(65_536):
            got += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"400", b"200"]


@pytest.mark.slow
def test_five_hundred_slow_clients_are_disconnected_and_delay_no_other_client(server: ServerProcess):
    server.get("/openapi.json")  # loads and makes what is made once
    files_before = open_files(server)
    slow_heads, slow_bodies, slow_readers = ([connected(server) for _ in range(count)] for count in (200, 200, 100))
    try:
        for peer in slow_heads:
            peer.sendall(b"GET /v2 HT")
        for peer in slow_bodies:
            peer.sendall(head(b"POST", INFER, b"Content-Length: 1000"))
        for peer in slow_readers:
            # More answers than the buffers between the two hold.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            peer.setblocking(False)
            with suppress(BlockingIOError):
                peer.send(HIDDEN.replace(b"/v2/health/live", b"/openapi.json") * 500)
        begun = time.monotonic()
        served_beside_slow_peers = 0
        # Each drips a byte a second: alive, and of no use.
        while time.monotonic() - begun < PATIENCE_S and open_files(server) > files_before + 5:
            for peer in (*slow_heads, *slow_bodies):
                try:
                    peer.send(b"x")
                except OSError:
                    continue
            assert server.get("/v2/health/live")[0] == 200
            assert server.get(INFER.decode(), infer_body())[0] == 200
            served_beside_slow_peers += open_files(server) > files_before + 5
            time.sleep(1)
        # Others wait for none of the slow peers: they are served while those are still connected.
        assert served_beside_slow_peers > 0
        assert open_files(server) <= files_before + 5
    finally:
        for peer in (*slow_heads, *slow_bodies, *slow_readers):
            peer.close()


@pytest.mark.slow
def test_sixty_four_pipelining_clients_hold_little_memory(server: ServerProcess):
    request = infer_request()
    for _ in range(3):
        assert server.get(INFER.decode(), infer_body())[0] == 200
    before = resident_bytes(server)
    peers = [connected(server) for _ in range(64)]
    try:
        for peer in peers:
            peer.setblocking(False)
        left = {peer: memoryview(request * 1000) for peer in peers}
        most = before
        answered = dict.fromkeys(peers, 0)
        end = time.monotonic() + 60
        while min(answered.values()) < 1000 and time.monotonic() < end:
            for peer in peers:
                with suppress(BlockingIOError):
                    if left[peer]:
                        left[peer] = left[peer][peer.send(left[peer]) :]
                with suppress(BlockingIOError):
                    answered[peer] += peer.recv(1 << 20).count(b"HTTP/1.1 200 ")
            most = max(most, resident_bytes(server))
        # A read may end inside a status line: some answers are not recognised.
        assert sum(answered.values()) > 64 * 900
        assert most - before < 64 * MIB
    finally:
        for peer in peers:
            peer.close()
