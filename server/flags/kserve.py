"""Flags of KServe v2's extensions, by Triton's names."""

from dataclasses import dataclass
from typing import Annotated, Any

from server.flags.declare import Switch, flag, option
from server.flags.trace_config import trace_config
from server.frontends.kserve.settings import KServeSettings

_PANEL = "KServe v2 extensions"


@dataclass(frozen=True, kw_only=True)
class KServeFlags:
    """The panel "KServe v2 extensions"."""

    allow_client_shm: Annotated[
        Switch, flag("allow-client-shm", panel=_PANEL, text="Let clients pass tensors in POSIX shared memory of this host.")
    ] = False
    trace_config: Annotated[
        list[str] | None,
        option(
            "trace-config",
            metavar="[MODE,]NAME=VALUE",
            panel=_PANEL,
            text="Tracing, in pieces: triton,file=PATH; triton,log-frequency=N; level=TIMESTAMPS or TENSORS; rate=N; count=N.",
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: a value in pieces has another form.
        """
        return {"kserve": KServeSettings(allow_client_shm=self.allow_client_shm, trace=trace_config(self.trace_config or []))}
