"""`model-compiler -s env|json -p FILE`: compiles what environment variables or a JSON file ask for, and prints the result as JSON.

Exit codes: 0; 1 the model was not compiled, or a callback that was asked for did not take the result; 2 the command was called wrongly.
Adlik's own command ends with 0 whatever happened.
"""

import argparse
import json
import logging
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from model_compiler import compile_model
from model_compiler.request import request_fields
from stoker.compiler.errors import CompileError, OptionError

logger = logging.getLogger(__name__)

#: As in Adlik: three retries, two seconds apart.
RETRIES = 3
PAUSE_S = 2.0
#: Timeout of one try in seconds. Adlik has none and may wait indefinitely.
TIMEOUT_S = 10.0
#: From this status on the receiver failed and a retry may succeed; lower statuses are rejections.
_FIRST_SERVER_ERROR = 500


def check_url(url: str) -> str:
    """Returns `url` if it is a valid address for the result.

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
    """Sends `result` to `url` with PUT; returns whether it was accepted. Failures are logged. `check_url` must have accepted `url`.

    Args:
        url: The address.
        result: Sent as JSON.
        pause: Waits this many seconds between tries.
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


OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
SOURCES = ("env", "json")


def main(arguments: Sequence[str] | None = None, *, environment: Mapping[str, str] | None = None) -> int:
    """Runs the command line (default: the process's own) with these environment variables (the process's own); returns the exit code."""
    variables = os.environ if environment is None else environment
    parser = _parser()
    try:
        given = parser.parse_args(arguments)
    except SystemExit as end:  # argparse has printed why
        return end.code if isinstance(end.code, int) else USAGE
    if given.source == "json" and given.path is None:
        return _wrong(parser, "-s json needs -p FILE")
    if given.source == "env" and given.path is not None:
        return _wrong(parser, "-p goes with -s json")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        fields = request_fields(variables) if given.source == "env" else read_json(given.path)
        url = _callback(fields, variables)
    except CompileError as error:
        return _report({"status": "failure", "error_msg": str(error)}, None)
    return _report(compile_model(fields), url)


def read_json(path: str | Path) -> dict[str, Any]:
    """Returns the fields of the request in file `path`.

    Raises:
        OptionError: it cannot be read, or holds no JSON object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None
    return parse_json(text, str(path))


def parse_json(text: str, origin: str) -> dict[str, Any]:
    """Parses `text` as the fields of a request.

    Raises:
        OptionError: it is no JSON object, or has a field twice; the text starts with `origin`, and has the line where it can.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise OptionError(f"{origin}:{error.lineno}: no valid JSON: {error.msg}") from None
    except ValueError as error:
        raise OptionError(f"{origin}: {error}") from None
    if not isinstance(found, dict):
        raise OptionError(f"{origin}: expected an object with the fields of a request, got {type(found).__name__}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' is written twice")
        found[key] = value
    return found


def _callback(fields: Mapping[str, Any], variables: Mapping[str, str]) -> str | None:
    url = fields.get("callback") or variables.get("CALLBACK")
    return check_url(str(url)) if url else None


def _report(result: Mapping[str, str], url: str | None) -> int:
    try:
        sys.stdout.write(json.dumps(dict(result)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone; the callback is sent nevertheless, and nothing more is written here, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    is_reported = url is None or send_result(url, result)
    if not is_reported:
        sys.stderr.write(f"model-compiler: error: {url} did not take the result\n")
    return OK if result["status"] == "success" and is_reported else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="model-compiler",
        description="Compile a model and put it into a model repository, with a zip file of it. The result is printed as JSON.",
        epilog="Exit codes: 0 compiled; 1 not compiled, or the callback did not take the result; 2 called wrongly.",
    )
    parser.add_argument("-s", "--source", choices=SOURCES, default="env", help="where the request is [default: env]")
    parser.add_argument("-p", "--path", metavar="FILE", help="JSON file with the request, for -s json")
    return parser


def _wrong(parser: argparse.ArgumentParser, message: str) -> int:
    sys.stderr.write(f"{parser.format_usage()}model-compiler: error: {message}\n")
    return USAGE


def run() -> NoReturn:
    """Calls `main` and ends the process with its exit code."""
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    run()
