"""The protocols of `stoker infer` and `stoker bench`, by their names in `--protocol`, and the default address of each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.connection import SOCKET_SCHEME, reported_failures, tls_for
from stoker.cli.options import DEFAULT_URL
from stoker.cli.output import CommandFailed, ExitCode

if TYPE_CHECKING:
    from stoker_client.predict_client import PredictClient
    from stoker_client.predict_dialect import PredictDialect
    from stoker_client.settings import Connection


class Protocol(StrEnum):
    """A protocol and its transport."""

    KSERVE_GRPC = "kserve-grpc"
    KSERVE_HTTP = "kserve-http"
    TFS_GRPC = "tfs-grpc"
    TFS_REST = "tfs-rest"
    ADLIK_GRPC = "adlik-grpc"
    ADLIK_REST = "adlik-rest"

    @property
    def is_grpc(self) -> bool:
        """Whether the transport is gRPC; else HTTP."""
        return self.value.endswith("grpc")

    @property
    def carrier(self) -> str:
        """The transport: `grpc` or `http`."""
        return "grpc" if self.is_grpc else "http"

    @property
    def is_kserve(self) -> bool:
        """Whether the protocol is KServe's, with parameters, statistics and all other calls of `stoker_client.connect`."""
        return self in (Protocol.KSERVE_GRPC, Protocol.KSERVE_HTTP)


class TensorFormat(StrEnum):
    """The encoding of tensors in kserve-http."""

    BINARY = "binary"
    JSON = "json"


ProtocolOption = Annotated[
    Protocol | None,
    typer.Option(
        "--protocol", help="Protocol. Default: KServe's, over the transport of --url.", show_default=False, rich_help_panel="Server"
    ),
]

_DEFAULT_HTTP_URL = "http://127.0.0.1:8501"


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the protocol of a command.

    Attributes:
        url: The address, with its scheme.
    """

    protocol: Protocol
    url: str

    def connection(self, headers: Mapping[str, str]) -> "Connection":
        """The settings of a transport to the server; `headers` are sent with every call.

        Raises:
            ValueError: the address or a header is invalid.
            CommandFailed: the TLS files are invalid.
        """
        from stoker_client.settings import MAX_MESSAGE_BYTES, make_connection

        return make_connection(
            self.url, self.protocol.carrier, tls=tls_for(self.url), api_key=None, headers=headers, max_message_bytes=MAX_MESSAGE_BYTES
        )


def target(protocol: Protocol | None, url: str) -> Target:
    """Combines the options `--protocol` and `--url`.

    Args:
        protocol: None: KServe's, over the transport of the address.
        url: `host:port`, or with a scheme; the default address gets the HTTP port for a protocol over HTTP.

    Raises:
        CommandFailed: they contradict each other.
    """
    if protocol is None:
        protocol = Protocol.KSERVE_HTTP if url.startswith(("http://", "https://", "http+unix:")) else Protocol.KSERVE_GRPC
    if url == DEFAULT_URL and not protocol.is_grpc:
        url = _DEFAULT_HTTP_URL
    carrier = protocol.carrier
    if socket := SOCKET_SCHEME.match(url):
        # The form that every parser of addresses accepts.
        url = f"{socket[2] or carrier}+unix://{url[socket.end() :].removeprefix('//')}"
    elif "://" not in url:
        url = f"{carrier}://{url}"
    if not url.startswith((f"{carrier}://", f"{carrier}s://", f"{carrier}+unix:")):
        raise CommandFailed(f"--protocol {protocol} goes to a {carrier}:// or {carrier}s:// address, --url is {url}", ExitCode.USAGE)
    return Target(protocol, url)


def dialect(protocol: Protocol, tensor_format: TensorFormat = TensorFormat.BINARY) -> "PredictDialect":
    """The dialect of `protocol`."""
    from stoker_client.adlik.dialect import AdlikGrpcDialect, AdlikRestDialect
    from stoker_client.grpc_dialect import GrpcDialect
    from stoker_client.http_dialect import HttpDialect
    from stoker_client.http_json_dialect import JsonHttpDialect
    from stoker_client.predict_dialect import KServePredict
    from stoker_client.settings import MAX_MESSAGE_BYTES
    from stoker_client.tfs import TfsGrpcDialect, TfsRestDialect

    if protocol is Protocol.KSERVE_GRPC:
        return KServePredict(GrpcDialect(MAX_MESSAGE_BYTES))
    if protocol is Protocol.KSERVE_HTTP:
        return KServePredict((JsonHttpDialect if tensor_format is TensorFormat.JSON else HttpDialect)(MAX_MESSAGE_BYTES))
    others: dict[Protocol, PredictDialect] = {
        Protocol.TFS_GRPC: TfsGrpcDialect(),
        Protocol.TFS_REST: TfsRestDialect(),
        Protocol.ADLIK_GRPC: AdlikGrpcDialect(),
        Protocol.ADLIK_REST: AdlikRestDialect(),
    }
    return others[protocol]


@contextmanager
def predicting(
    whom: Target, headers: Mapping[str, str], timeout_s: float, tensor_format: TensorFormat = TensorFormat.BINARY
) -> Iterator["PredictClient"]:
    """Opens a client of `whom` for the context, which sends `headers` with every call; its errors become errors of the command.

    Raises:
        CommandFailed: the address is invalid, the server cannot be reached, or a call in the context failed.
    """
    with reported_failures(whom.url):
        from stoker_client import RetryPolicy
        from stoker_client.grpc_client import GrpcTransport
        from stoker_client.http_client import HttpTransport
        from stoker_client.predict_client import PredictClient

        try:
            connection = whom.connection(headers)
        except ValueError as error:
            raise CommandFailed(f"--url: {error}", ExitCode.USAGE) from error
        transport = GrpcTransport(connection) if whom.protocol.is_grpc else HttpTransport(connection)
        words = dialect(whom.protocol, tensor_format)
        with PredictClient(words, transport, timeout_s=timeout_s, retry=RetryPolicy(max_attempts=2)) as client:
            yield client
