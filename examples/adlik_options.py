"""The command-line options that every example client over Adlik's protocol has, and the connection they ask for."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from argument_types import positive

from stoker_client import StokerError
from stoker_client.adlik import PredictContext

#: Where a server listens unless it is told otherwise: its two protocols have a port each.
_ADDRESSES = {"grpc": "localhost:8500", "http": "localhost:8501"}


def add_server_options(parser: argparse.ArgumentParser, model_name: str) -> None:
    """Adds -m, -b, -u, -i and -v."""
    parser.add_argument("-m", "--model-name", default=model_name, help="name of the model (default: %(default)s)")
    parser.add_argument("-b", "--batch-size", type=positive, default=1, help="samples sent at a time (default: %(default)s)")
    parser.add_argument("-u", "--url", help=f"host:port of the server (default: {_ADDRESSES['grpc']}, with -i http {_ADDRESSES['http']})")
    parser.add_argument("-i", "--protocol", choices=("grpc", "http"), default="grpc", help="spoken with the server (default: %(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the time of every request")


@contextmanager
def served_model(options: argparse.Namespace) -> Iterator[PredictContext]:
    """The model that the options name; what fails while it is used ends the program with one line.

    Raises:
        SystemExit: no such server or model, a batch larger than it takes, or a request that fails.
    """
    url = options.url or _ADDRESSES[options.protocol]
    try:
        context = PredictContext(options.model_name, url=url, protocol=options.protocol, verbose=options.verbose)
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
