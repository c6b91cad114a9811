"""The command-line options that every example client over Adlik's protocol has, and the connection they ask for."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from argument_types import positive

from stoker_client import StokerError
from stoker_client.adlik import PredictContext

#: Where a server listens by default: its two protocols have a port each.
_ADDRESSES = {"grpc": "localhost:8500", "http": "localhost:8501"}


def add_server_options(parser: argparse.ArgumentParser, model_name: str) -> None:
    """Adds -m, -b, -u, -i and -v."""
    parser.add_argument("-m", "--model-name", default=model_name, help="name of the model (default: %(default)s)")
    parser.add_argument("-b", "--batch-size", type=positive, default=1, help="samples sent at a time (default: %(default)s)")
    parser.add_argument(
        "-u", "--url", help=f"host:port of the server (default: STOKER_URL, else {_ADDRESSES['grpc']}, with -i http {_ADDRESSES['http']})"
    )
    parser.add_argument(
        "-i", "--protocol", choices=("grpc", "http"), help="spoken with the server (default: that of STOKER_URL, else grpc)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the time of every request")


@contextmanager
def served_model(options: argparse.Namespace) -> Iterator[PredictContext]:
    """The model that the options name; what fails while it is used ends the program with one line.

    Raises:
        SystemExit: no such server or model, a batch larger than it takes, or a request that fails.
    """
    url, protocol = _server(options.url, options.protocol, os.environ.get("STOKER_URL"))
    try:
        context = PredictContext(
            options.model_name, url=url, protocol=protocol, verbose=options.verbose, api_key=os.environ.get("STOKER_API_KEY") or None
        )
    except (StokerError, ValueError) as error:  # ValueError: not an address
        raise SystemExit(f"{url}: {error}") from None
    with context:
        largest = max(1, context.model_config.max_batch_size)
        if options.batch_size > largest:
            raise SystemExit(f"-b {options.batch_size}: model '{options.model_name}' takes batches of at most {largest}")
        try:
            yield context
        except StokerError as error:
            raise SystemExit(f"{url}: {error}") from None


def _server(url: str | None, protocol: str | None, variable: str | None) -> tuple[str, str]:
    """Address and protocol: `url` and `protocol` as the options give them, else those of `variable`, the value of STOKER_URL."""
    if url is None and variable and protocol in (None, "http" if variable.startswith("http") else "grpc"):
        return variable, "http" if variable.startswith("http") else "grpc"
    protocol = protocol or "grpc"
    return url or _ADDRESSES[protocol], protocol
