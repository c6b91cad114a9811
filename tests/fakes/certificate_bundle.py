"""The bundle of the web's authorities, left unread where no test speaks to the web."""

from collections.abc import Iterator
from pathlib import Path

import pytest


def empty_bundle(folder: Path) -> Iterator[None]:
    """Gives HTTP clients without an authority an empty trust store.

    httpx reads the whole bundle for every client it makes, those of plain `http://` too: some 25 ms of CPU, hundreds of times. Tests of
    TLS name their own authority and are not touched.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_DIR", str(folder))
        patch.delenv("SSL_CERT_FILE", raising=False)
        yield
