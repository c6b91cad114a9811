"""`stoker models`, `stoker metadata`, `stoker config`: the models of a server, their tensors and configurations."""

from typing import TYPE_CHECKING, Any

from stoker.cli.connection import connected
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Model, Timeout, Url, Version
from stoker.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from stoker_client import Client

_COLUMNS = ("model", "version", "state", "backend", "platform")


def models(
    url: Url = DEFAULT_URL, as_json: AsJson = False, api_key: ApiKey = None, headers: Headers = None, timeout: Timeout = DEFAULT_TIMEOUT_S
) -> None:
    """List the models of the repository: versions, states, backends, and why one is not ready."""
    with connected(url, api_key, timeout, headers) as client:
        rows = [{**_row(entry), **_kind(client, entry)} for entry in client.index()]
    if as_json:
        print_json(rows)
    else:
        print_table(_COLUMNS, [[row[column] or "-" for column in _COLUMNS] for row in rows], spare=("platform", "backend"))
        # Below the table: a reason is a sentence, and a column would wrap it.
        for row in rows:
            if row["reason"]:
                version = f" version {row['version']}" if row["version"] else ""
                print_line(f"{row['model']}{version}: {row['reason']}")


def _row(entry: dict[str, Any]) -> dict[str, str]:
    facts = {key: str(entry[key]) for key in ("version", "state", "reason")}
    return {"model": str(entry["name"]), **facts, "backend": "", "platform": ""}


def _kind(client: "Client", entry: dict[str, Any]) -> dict[str, str]:
    """Backend and platform. The index does not contain them, and only a version that serves has a configuration to read."""
    from stoker_client import NotFound, Unavailable

    if entry["state"] != "READY":
        return {}
    try:
        config = client.model_config(entry["name"], entry["version"])
    except (NotFound, Unavailable):  # the model was unloaded after the index was read
        return {}
    return {key: str(config.get(key, "")) for key in ("backend", "platform")}


def metadata(
    model: Model,
    version: Version = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show a model's inputs and outputs."""
    with connected(url, api_key, timeout, headers) as client:
        facts = client.model_metadata(model, version)
    if as_json:
        print_json(facts)
        return
    print_line(f"{facts['name']}: version {', '.join(facts.get('versions', []))}, platform {facts.get('platform') or '-'}")
    rows = [
        [kind, tensor["name"], tensor["datatype"], str(list(tensor["shape"]))]
        for kind in ("inputs", "outputs")
        for tensor in facts.get(kind, [])
    ]
    print_table(("", "name", "datatype", "shape"), [[row[0].removesuffix("s"), *row[1:]] for row in rows])


def config(
    model: Model,
    version: Version = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,  # no effect here; accepted so that every command has it
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print a model's configuration as the server completed it, as JSON."""
    with connected(url, api_key, timeout, headers) as client:
        print_json(client.model_config(model, version))
