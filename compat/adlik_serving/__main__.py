"""`adlik_serving`: Stoker's `serve` with Adlik's flags and defaults.

A front whose port is 0 or not given is off, all interfaces are bound, the repository is looked at every 10 s, and metadata below /v1 is
served in Adlik's form. Binding all interfaces is what Adlik does and what scripts written for it expect (a container's port, another
host); one line says so. Flags of Adlik's that have no counterpart are accepted with a line that says so, except where ignoring one would
make the server less safe than it was asked to be. Every flag of `serve` may be given too.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from stoker.server.main import main as serve

#: Adlik's flags that have no counterpart, and why none is needed.
_WITHOUT_EFFECT = {
    "http_num_threads": "one event loop serves every connection",
    "http_timeout_in_ms": "the bounds of a connection are set by --limit",
    "grpc_channel_args": "the bounds of a connection are set by --limit",
}
#: Flags of builds with TensorFlow or TensorRT.
_OTHER_RUNTIMES = ("tf_", "trt_")
_POLL_S = "10"
_HELP = """usage: adlik_serving --model_base_path=FOLDER [--grpc_port=8500] [--http_port=8501] [--name=value ...]

Adlik's flags: model_base_path, grpc_port, http_port (0 or not given: that front is off), loading_method=automatic|manual,
fs_poll_wait_seconds (10). Accepted without effect: http_num_threads, http_timeout_in_ms, grpc_channel_args, tf_*, trt_*.
ssl_config_file: TLS of the gRPC port. Every flag of 'serve' is taken as well; 'serve --help' lists them.
"""


def translate(arguments: Sequence[str]) -> list[str]:
    """Adlik's `--name=value` arguments as `serve`'s.

    Raises:
        SystemExit: both ports are off; exit code 2, as for every wrong flag of `serve`.
    """
    ports = {"grpc_port": "0", "http_port": "0"}
    defaults = {
        "address": "0.0.0.0",  # noqa: S104 - Adlik's own behaviour, and announced
        "fs_poll_wait_seconds": _POLL_S,
        "prefer_adlik": "true",
    }
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not equals and name in (*ports, *defaults, "ssl_config_file", *_WITHOUT_EFFECT) and rest:
            value = rest.pop(0)
            word = f"--{name}={value}"
        if name in ports:
            ports[name] = value
        elif name == "ssl_config_file" and not value:
            continue  # Adlik's default: no TLS
        elif name in _WITHOUT_EFFECT:
            _say(f"--{name} has no effect here: {_WITHOUT_EFFECT[name]}")
        elif word.startswith("--") and name.startswith(_OTHER_RUNTIMES):
            _say(f"--{name} has no effect here: it belongs to a runtime of Adlik's that this server does not have")
        else:
            defaults.pop({"repository_poll_secs": "fs_poll_wait_seconds"}.get(name, name), None)
            words.append(word)
    if all(port in ("", "0") for port in ports.values()):
        _reject("--grpc_port and --http_port are both 0 or not given: nothing would be served")
    for front in ("grpc", "http"):
        port = ports[f"{front}_port"]
        words.append(f"--allow-{front}=false" if port in ("", "0") else f"--{front}-port={port}")
    return [*words, *(f"--{name}={value}" for name, value in defaults.items())]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command; ends the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in given:
        print(_HELP, end="")
        sys.exit(0)
    words = given if "--version" in given else translate(given)
    if "--address=0.0.0.0" in words:
        _say("listening on all interfaces, as Adlik does; --address=127.0.0.1 keeps to this machine")
    serve(words)


def _reject(text: str) -> NoReturn:
    _say(f"error: {text}")
    sys.exit(2)


def _say(text: str) -> None:
    print(f"adlik_serving: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
