"""Which paths are answered on a connection in a reserved slot: health, metrics and administration."""

import re
from typing import Final

from stoker.server.protocols.tfs.settings import METRICS_PATH

_MODEL: Final = r"/v2/models/[^/]+(?:/versions/[0-9]+)?"
_PATHS: Final = re.compile(
    rf"/v2/health/(?:live|ready)|{_MODEL}/(?:ready|stats|trace/setting)|/v2/models/stats|/metrics|{re.escape(METRICS_PATH)}"
    r"|/v2/repository/.+|/v2/logging|/v2/trace/setting|/v1/models/[^/:]+(?:/versions/[0-9]+|/labels/[^/:]+)?",
)


def is_reserved_path(path: str) -> bool:
    """Whether `path`, percent-decoded, is one of them."""
    return _PATHS.fullmatch(path) is not None
