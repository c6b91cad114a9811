"""Sources of the API key, its refusals, and the start's notices about it."""

import logging
from pathlib import Path

import pytest

from stoker.server.core.flag import FlagError
from stoker.server.flags.command import read_command
from stoker.server.flags.protocols import MAX_KEY_BYTES, SHORT_KEY_CHARS
from stoker.server.net.settings import is_loopback
from stoker.server.server_config import ServerConfig

KEY = "k" * SHORT_KEY_CHARS


def started(*words: str, **variables: str) -> ServerConfig:
    config = read_command(["--model_base_path=/models", *words], variables)
    assert isinstance(config, ServerConfig)
    return config


def key_file(at: Path, data: bytes) -> str:
    (at / "key").write_bytes(data)
    return f"--api-key-file={at / 'key'}"


def test_no_key_is_required_by_default():
    assert started().api_key is None
    assert not [notice for notice in started().notices if "API key" in notice]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_key_file_has_the_key_on_one_line(end: bytes, tmp_path: Path):
    assert started(key_file(tmp_path, KEY.encode() + end)).api_key == KEY


def test_variable_contains_the_key_and_the_flag_overrides_it(tmp_path: Path):
    assert started(STOKER_API_KEY=KEY).api_key == KEY
    assert started(key_file(tmp_path, b"other-key-of-a-file\n"), STOKER_API_KEY=KEY).api_key == "other-key-of-a-file"
    assert started(STOKER_API_KEY_FILE=key_file(tmp_path, KEY.encode()).partition("=")[2]).api_key == KEY


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"two words", "printable ASCII without blanks"),
        (b"two\nlines\n", "printable ASCII without blanks"),
        ("schlüssel".encode(), "printable ASCII without blanks"),
        (b"k\0", "printable ASCII without blanks"),
        (b"k" * (MAX_KEY_BYTES + 1), f"more than {MAX_KEY_BYTES} bytes"),
        (b"k" * (MAX_KEY_BYTES + 2), f"more than {MAX_KEY_BYTES} bytes"),
    ],
)
def test_file_without_a_key_ends_the_start_and_is_not_quoted(data: bytes, text: str, tmp_path: Path):
    with pytest.raises(FlagError, match=text) as refused:
        started(key_file(tmp_path, data))
    assert "two" not in str(refused.value)


def test_key_of_the_maximum_length_is_accepted(tmp_path: Path):
    assert started(key_file(tmp_path, b"k" * MAX_KEY_BYTES + b"\r\n")).api_key == "k" * MAX_KEY_BYTES


def test_missing_file_ends_the_start(tmp_path: Path):
    with pytest.raises(FlagError, match="the file cannot be read: No such file or directory"):
        started(f"--api-key-file={tmp_path / 'none'}")


def test_empty_variable_ends_the_start():
    with pytest.raises(FlagError, match="STOKER_API_KEY is empty"):
        started(STOKER_API_KEY="")


def test_start_reports_that_a_key_is_required_and_its_exceptions():
    assert len(started(STOKER_API_KEY=KEY).notices) == 1
    short, plain = started("--address=0.0.0.0", STOKER_API_KEY="short").notices[1:]
    assert short.startswith("the API key has 5 characters")
    assert plain.startswith("the API key crosses the network unencrypted")
    config = started("--address=0.0.0.0", "--allow-tcp=false", "--grpc_socket_path=/g", "--http_socket_path=/h", STOKER_API_KEY=KEY)
    assert len(config.notices) == 1


def test_key_is_not_shown(caplog: pytest.LogCaptureFixture):
    config = started(STOKER_API_KEY=KEY)
    assert KEY not in repr(config)
    assert not [notice for notice in config.notices if KEY in notice]
    logging.getLogger(__name__).warning("%s", config)
    assert KEY not in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_local_addresses_are_recognised(address: str):
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"])
def test_remote_addresses_are_recognised(address: str):
    assert not is_loopback(address)
