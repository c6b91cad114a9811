"""Flags of cross-origin resource sharing."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from stoker.server.flags.declare import Switch, flag, option
from stoker.server.flags.values import FlagError
from stoker.server.web.cors_settings import ANY, CorsSettings

_PANEL = "Network"
#: As browsers write an origin: no path, no user, everything in lower case.
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.\-]*://(?:[a-z0-9_.\-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class CorsFlags:
    """Whose pages may read answers of the HTTP port."""

    http_cors_allow_origin: Annotated[
        list[str] | None,
        option(
            "http-cors-allow-origin", panel=_PANEL, metavar="ORIGIN", text="Pages whose scripts may use HTTP; *: any; several by commas."
        ),
    ] = None
    rest_api_enable_cors_support: Annotated[
        Switch, flag("rest-api-enable-cors-support", panel=_PANEL, text="TensorFlow Serving's word for --http-cors-allow-origin=*.")
    ] = False

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: what is no origin, or one beside `*`.
        """
        origins = {each.strip().lower() for given in self.http_cors_allow_origin or () for each in given.split(",")}
        for origin in sorted(origins - {ANY}):
            if not _ORIGIN.fullmatch(origin):
                raise FlagError(f"--http-cors-allow-origin={origin}: expected an origin such as https://app.example:8443, or *")
        if self.rest_api_enable_cors_support:
            origins.add(ANY)
        if ANY in origins and len(origins) > 1:
            raise FlagError("--http-cors-allow-origin: * allows every origin, the others have no effect: give one or the other")
        return {"cors": CorsSettings(frozenset(origins))}
