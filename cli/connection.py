"""A client for the length of one command; its errors become the command's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cli.failure import CommandFailed, ExitCode

if TYPE_CHECKING:
    from stoker_client import Client


@contextmanager
def connected(url: str, api_key: str | None, timeout_s: float) -> Iterator["Client"]:
    """A client of the server at `url`, closed afterwards.

    Raises:
        CommandFailed: the address is unusable, the server cannot be reached, or a call in the block failed.
    """
    # gRPC's own notes about connections would stand between the command's lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import stoker_client

    try:
        client = stoker_client.connect(url, api_key=api_key, timeout_s=timeout_s, retry=stoker_client.RetryPolicy(max_attempts=2))
    except ValueError as error:
        raise CommandFailed(f"--url: {error}", ExitCode.USAGE) from error
    with client:
        try:
            yield client
        except stoker_client.ConnectionFailed as error:
            raise CommandFailed(f"cannot connect to {url}: {error.message}", ExitCode.CANNOT_CONNECT) from error
        except stoker_client.StokerError as error:
            raise CommandFailed(error.message or type(error).__name__) from error
