"""`TfsClient`: predictions over TensorFlow Serving's protocol."""

from collections.abc import Mapping

from stoker_client.grpc_client import GrpcTransport
from stoker_client.http_client import HttpTransport
from stoker_client.predict_client import PredictClient
from stoker_client.retry import RetryPolicy, Timing
from stoker_client.settings import MAX_MESSAGE_BYTES, TlsConfig, make_connection, parse_url
from stoker_client.tfs.grpc_dialect import TfsGrpcDialect
from stoker_client.tfs.rest_dialect import TfsRestDialect


class TfsClient(PredictClient):
    """A client of TensorFlow Serving, or of a server with its protocol. The address selects gRPC or REST.

    Args:
        url: `grpc://host:port`, `grpcs://`, `http://`, `https://`, `grpc+unix:///path` or `http+unix:///path`.
        timeout_s: Time limit of a call in seconds, retries included; None: no limit.
        retry: When and how often failed calls are sent again.
        tls: Certificates; None: the system's.
        api_key: Sent as `authorization: Bearer <key>`.
        headers: Sent with every call.
        timing: The clock; for tests.

    Raises:
        InvalidSetting: the address or a setting is invalid.
    """

    def __init__(
        self,
        url: str = "grpc://127.0.0.1:8500",
        *,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy = RetryPolicy(),
        tls: TlsConfig | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timing: Timing = Timing(),
    ) -> None:
        protocol = parse_url(url).protocol
        connection = make_connection(url, protocol, tls=tls, api_key=api_key, headers=headers, max_message_bytes=MAX_MESSAGE_BYTES)
        if protocol == "grpc":
            super().__init__(TfsGrpcDialect(), GrpcTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)
        else:
            super().__init__(TfsRestDialect(), HttpTransport(connection), timeout_s=timeout_s, retry=retry, timing=timing)
