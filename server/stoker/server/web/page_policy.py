"""What browsers are told with the server's pages: what a page may load, so that a name that escaped its quotes could do nothing."""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

_SCRIPT: Final = (b"<script>", b"</script>")


def page_headers(policy: str) -> dict[str, str]:
    """The headers of a page with the content security policy `policy`."""
    return {"content-security-policy": policy, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@cache
def docs_page() -> tuple[bytes, str]:
    """The page of all routes, and its policy: it runs its own script, known by its hash, and calls this server, nothing else."""
    page = files("stoker.server.web").joinpath("pages/api.html").read_bytes()
    script = page.split(_SCRIPT[0], 1)[1].split(_SCRIPT[1], 1)[0]
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return page, (
        f"default-src 'none'; script-src 'sha256-{digest}'; connect-src 'self'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
