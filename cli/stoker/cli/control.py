"""`stoker load` and `stoker unload`: load and unload models, if the server's control mode allows it."""

from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.connection import connected
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Model, Timeout, Url
from stoker.cli.output import CommandFailed, ExitCode, print_json, print_line

_LOAD_TIMEOUT_S = 600.0

Config = Annotated[
    str | None,
    typer.Option("--config", metavar="JSON", help="Use this configuration instead of the repository's: JSON text, or a .json file."),
]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", metavar="PATH=LOCAL", help="Send a local file as PATH below the model folder, e.g. 1/model.onnx=new.onnx."),
]


def load(
    model: Model,
    config: Config = None,
    file: Files = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = _LOAD_TIMEOUT_S,
) -> None:
    """Load or reload a model; returns when it is ready."""
    text = _read(Path(config)).decode("utf-8", "replace") if config is not None and config.endswith(".json") else config
    files = dict(_file(assignment) for assignment in file or [])
    with connected(url, api_key, timeout, headers) as client:
        client.load(model, config=text, files=files)
        versions = client.model_metadata(model).get("versions", [])
    if as_json:
        print_json({"model": model, "loaded": True, "versions": versions})
    else:
        print_line(f"model '{model}' is loaded: version {', '.join(versions)}")


def unload(
    model: Model,
    dependents: Annotated[bool, typer.Option("--dependents", help="Also unload the models that it depends on.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Take a model out of service."""
    with connected(url, api_key, timeout, headers) as client:
        # Servers accept an unload of a model that does not exist; here it is an error, probably a misspelling.
        known = sorted({str(entry["name"]) for entry in client.index()})
        if model not in known:
            raise CommandFailed(f"no model '{model}' in the repository; it has {', '.join(known) or 'none'}")
        client.unload(model, unload_dependents=dependents)
    if as_json:
        print_json({"model": model, "loaded": False})
    else:
        print_line(f"model '{model}' is unloaded")


def _file(assignment: str) -> tuple[str, bytes]:
    path, equals, local = assignment.partition("=")
    if not (path and equals and local):
        raise CommandFailed(f"--file {assignment}: expected PATH=LOCAL, such as 1/model.onnx=new.onnx", ExitCode.USAGE)
    return path, _read(Path(local))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror}", ExitCode.USAGE) from error
