"""`adlik_serving`: Stoker's `serve` with Adlik's defaults: a front whose port is 0 or not given is off, and all interfaces are bound.

Binding all interfaces is what Adlik does and what scripts written for it expect (a container's port, another host); one line says so.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

from server.main import main as serve

#: Adlik's flags that have no counterpart: accepted when at their default, named otherwise.
_IGNORED = {"http_num_threads", "http_timeout_in_ms", "grpc_channel_args", "ssl_config_file"}


def translate(arguments: Sequence[str]) -> list[str]:
    """Adlik's `--name=value` arguments as Stoker's.

    Raises:
        SystemExit: a flag that would change how the server is reached, and has no counterpart here, is set.
    """
    ports = {"grpc_port": "0", "http_port": "0"}
    words: list[str] = []
    address = "0.0.0.0"  # noqa: S104 - Adlik's own behaviour, and announced
    for word in arguments:
        name, _, value = word.removeprefix("--").partition("=")
        if name in ports:
            ports[name] = value
        elif name == "address":
            address = value
        elif name == "ssl_config_file" and value:
            raise SystemExit("adlik_serving: error: --ssl_config_file is not supported: TLS would silently be off")
        elif name in _IGNORED:
            print(f"adlik_serving: --{name} has no effect here", file=sys.stderr)
        else:
            words.append(word)
    for front in ("grpc", "http"):
        port = ports[f"{front}_port"]
        words.append(f"--allow-{front}=false" if port in ("", "0") else f"--{front}-port={port}")
    return [*words, f"--address={address}"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command; ends the process."""
    words = translate(sys.argv[1:] if arguments is None else arguments)
    if "--address=0.0.0.0" in words:
        print("adlik_serving: listening on all interfaces, as Adlik does; --address=127.0.0.1 keeps to this machine", file=sys.stderr)
    serve(words)


if __name__ == "__main__":
    main()
