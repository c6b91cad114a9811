"""Flags of KServe v2's extensions, by Triton's names."""

from dataclasses import dataclass
from typing import Annotated, Any

from server.flags.declare import Switch, flag
from server.frontends.kserve.settings import KServeSettings

_PANEL = "KServe v2 extensions"


@dataclass(frozen=True, kw_only=True)
class KServeFlags:
    """The panel "KServe v2 extensions"."""

    allow_client_shm: Annotated[
        Switch, flag("allow-client-shm", panel=_PANEL, text="Let clients pass tensors in POSIX shared memory of this host.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`."""
        return {"kserve": KServeSettings(allow_client_shm=self.allow_client_shm)}
