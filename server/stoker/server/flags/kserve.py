"""Flags of KServe v2's extensions, by Triton's names."""

from dataclasses import dataclass
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, option
from stoker.server.flags.restricted import restricted_keys
from stoker.server.flags.trace_config import trace_config
from stoker.server.flags.values import FlagError
from stoker.server.protocols.kserve.header_forward import HeaderForward, PatternError
from stoker.server.protocols.kserve.settings import KServeSettings
from stoker.server.rpc.restricted_apis import GRPC_KEY_PREFIX

_PANEL = "KServe v2 extensions"


@dataclass(frozen=True, kw_only=True)
class KServeFlags:
    """The panel "KServe v2 extensions"."""

    allow_client_shm: Annotated[
        Switch, flag("allow-client-shm", panel=_PANEL, text="Let clients pass tensors in POSIX shared memory of this host.")
    ] = False
    allow_settings_changes: Annotated[
        Switch,
        flag(
            "allow-settings-changes",
            panel=_PANEL,
            text="Let clients change log and trace settings (default: on loopback addresses, or by a key).",
        ),
    ] = None
    trace_config: Annotated[
        list[str] | None,
        option(
            "trace-config",
            metavar="NAME=V",
            panel=_PANEL,
            text="Tracing, in pieces: triton,file=F; opentelemetry,url=U; level=L; rate=N; count=N.",
        ),
    ] = None
    http_restricted_api: Annotated[
        list[str] | None,
        option(
            "http-restricted-api",
            metavar="APIS:K=V",
            panel=_PANEL,
            text="Answer these categories over HTTP only with header K: V.",
        ),
    ] = None
    grpc_restricted_protocol: Annotated[
        list[str] | None,
        option(
            "grpc-restricted-protocol",
            metavar="APIS:K=V",
            panel=_PANEL,
            text="The same over gRPC; K is preceded by triton-grpc-protocol-.",
        ),
    ] = None
    http_header_forward_pattern: Annotated[
        str,
        option("http-header-forward-pattern", metavar="REGEX", panel=_PANEL, text="HTTP headers of these names become request parameters."),
    ] = ""
    grpc_header_forward_pattern: Annotated[
        str,
        option(
            "grpc-header-forward-pattern", metavar="REGEX", panel=_PANEL, text="gRPC metadata of these names become request parameters."
        ),
    ] = ""

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: a value in pieces has another form.
        """
        for name in ("http_header_forward_pattern", "grpc_header_forward_pattern"):
            try:
                HeaderForward(getattr(self, name))
            except PatternError as error:
                raise FlagError(f"--{name.replace('_', '-')}={getattr(self, name)}: {error}") from None
        http, grpc = self.http_restricted_api or [], self.grpc_restricted_protocol or []
        settings = KServeSettings(
            allow_client_shm=self.allow_client_shm,
            allow_settings_changes=self.allow_settings_changes,
            trace=trace_config(self.trace_config or []),
            http_restricted=restricted_keys("http-restricted-api", http, what="api"),
            grpc_restricted=restricted_keys("grpc-restricted-protocol", grpc, what="protocol", prefix=GRPC_KEY_PREFIX),
            http_forward_pattern=self.http_header_forward_pattern,
            grpc_forward_pattern=self.grpc_header_forward_pattern,
        )
        return {"kserve": settings}
