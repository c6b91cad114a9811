"""Reports the result by a PUT as JSON to a URL, with a few short retries."""

import json
import logging
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping

from stoker.compiler.errors import OptionError

logger = logging.getLogger(__name__)

#: Adlik's: three more tries, two seconds apart.
RETRIES = 3
PAUSE_S = 2.0
#: Of one try. Adlik's has none and may wait for ever.
TIMEOUT_S = 10.0
#: From here on the receiver failed; below it has understood and refused, which it would do again.
_FIRST_SERVER_ERROR = 500


def check_url(url: str) -> str:
    """`url`, if a result can be put there.

    Raises:
        OptionError: it is no http or https URL with a host.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise OptionError(f"callback: expected an http or https URL, got '{url}'")
    return url


def send_result(url: str, result: Mapping[str, str], *, pause: Callable[[float], None] = time.sleep) -> bool:
    """Puts `result` to `url`, which `check_url` has seen; whether it was taken. What went wrong is logged.

    Args:
        url: Where to.
        result: Sent as JSON.
        pause: Waits so many seconds between tries.
    """
    body = json.dumps(dict(result)).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")  # noqa: S310 - check_url has seen it
    for attempt in range(RETRIES + 1):
        if attempt:
            pause(PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - as above
                return True
        except urllib.error.HTTPError as error:
            with error:
                logger.warning("callback %s returned %d %s", url, error.code, error.reason)
            if error.code < _FIRST_SERVER_ERROR:
                return False
        except OSError as error:  # URLError, timeouts, broken connections
            logger.warning("callback %s cannot be reached: %s", url, getattr(error, "reason", error))
    return False
