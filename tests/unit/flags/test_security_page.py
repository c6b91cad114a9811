"""Flags and bounds in docs/security.md equal the server's."""

import re
from pathlib import Path

from stoker.server.core.flag import Panel
from stoker.server.core.limits import Limits
from stoker.server.flags.network import CorsFlags
from stoker.server.flags.protocols import MAX_KEY_BYTES
from stoker.server.flags.table import flags, primary_names
from stoker.server.net.listeners import MAX_PATH_BYTES

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "security.md").read_text()
TEXT = " ".join(PAGE.split())
#: Of curl and openssl.
OTHERS = {"cacert", "cert", "key", "unix-socket"}


def named(text: str) -> set[str]:
    return {name.replace("_", "-") for name in re.findall(r"--([a-z][a-z0-9_-]*[a-z0-9])", text)}


def test_every_flag_of_the_page_exists():
    assert named(PAGE) - OTHERS - {"limit"} <= {*flags(), *primary_names()}


def test_page_states_the_longest_key():
    assert f"at most {MAX_KEY_BYTES:,} bytes" in TEXT


def test_every_flag_of_tls_sockets_and_cors_is_on_the_page():
    panels = {name for name, each in flags().items() if each.flag.panel in (Panel.TLS, Panel.API_KEY)}
    others = {name for name, each in flags().items() if each.path.startswith("sockets.") or each.group is CorsFlags}
    assert len(panels) == 14
    assert len(others) == 6
    assert panels | others <= named(PAGE)
    serving = named((DOCS / "serving.md").read_text())
    assert {"grpc-use-ssl", "ssl-config-file", "grpc-socket-path", "allow-tcp", "http-cors-allow-origin"} <= serving


def test_limits_of_the_page_equal_those_of_the_server():
    limits = Limits()
    assert f"A handshake may take {limits.tls_handshake_timeout_s:g} s" in TEXT
    assert f"At most {limits.tls_handshakes} handshakes run on one port" in TEXT
    assert f"A path may have at most {MAX_PATH_BYTES} bytes" in TEXT
