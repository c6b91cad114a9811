"""The files of the console: a page, its styles and its scripts, as they are in the package.

They hold no data of the server, so they need no key: a browser cannot send one with the address of a page. The page asks for the key and
sends it with every request for data.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from stoker.server.net.http1.response import HeaderList
from stoker.server.protocols.exchange import Scope, Send, header_of, send_response

#: The path of the console; its files are below it.
ROOT: Final = "/ui"
#: Scripts, styles and data of this server, and nothing else. Pictures that the user chooses are `blob:` and `data:`.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        content_type: Its media type.
        etag: Changes with its content.
    """

    body: bytes
    content_type: str
    etag: str


@cache
def assets() -> Mapping[str, Asset]:
    """The files by path; they are read at the first call."""
    static = files("stoker.server.web").joinpath("console/static")
    found: dict[str, Asset] = {}
    for folder, below in ((static, ""), (static.joinpath("vendor"), "vendor/")):
        for file in folder.iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                body = file.read_bytes()
                found[f"{ROOT}/{below}{file.name}"] = Asset(body, kind, f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"')
    found[f"{ROOT}/"] = found[f"{ROOT}/index.html"]
    return found


def is_asset(path: str) -> bool:
    """Whether `path` is a file of the console, or its root without the slash."""
    return path == ROOT or (path.startswith(f"{ROOT}/") and path in assets())


async def send_asset(scope: Scope, send: Send) -> None:
    """Serves a GET of a path for which `is_asset` is true."""
    if scope["path"] == ROOT:
        # Relative: it is right behind a path prefix, too. The page's own links need the slash.
        await send_response(send, 307, b"", [(b"location", b"ui/")])
        return
    asset = assets()[scope["path"]]
    headers: HeaderList = [
        (b"etag", asset.etag.encode()),
        # Another version of the server has other files under the same names.
        (b"cache-control", b"no-cache"),
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
    ]
    known = header_of(scope["headers"])("if-none-match") or ""
    if asset.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
    else:
        await send_response(send, 200, asset.body, [(b"content-type", asset.content_type.encode()), *headers])
