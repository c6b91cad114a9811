"""How the command's connections are encrypted: by the environment, so that no command has to repeat it."""

import os
from typing import TYPE_CHECKING

from stoker.cli.failure import CommandFailed, ExitCode

if TYPE_CHECKING:
    from stoker_client import TlsConfig

#: By the field of `TlsConfig` that it sets.
VARIABLES = {"ca": "STOKER_TLS_CA", "cert": "STOKER_TLS_CERT", "key": "STOKER_TLS_KEY", "server_name": "STOKER_TLS_SERVER_NAME"}
_SECURE = ("grpcs://", "https://")


def tls_for(url: str) -> "TlsConfig | None":
    """What the environment says for a `grpcs://` or `https://` address; None: nothing, or the address is plain.

    Raises:
        CommandFailed: a certificate without its key, or a file that cannot be read.
    """
    given = {field: value for field, variable in VARIABLES.items() if (value := os.environ.get(variable))}
    if not given or not url.startswith(_SECURE):
        return None
    from stoker_client import TlsConfig

    for field in ("ca", "cert", "key"):
        if field in given and not os.access(given[field], os.R_OK):
            raise CommandFailed(f"{VARIABLES[field]}={given[field]}: no such file, or it cannot be read", ExitCode.USAGE)
    if ("cert" in given) != ("key" in given):
        raise CommandFailed("STOKER_TLS_CERT and STOKER_TLS_KEY belong together: give both, or neither", ExitCode.USAGE)
    return TlsConfig(**given)
