"""`stoker metadata`, `stoker config`, `stoker version`: what a model takes and gives, how it is set up, what is installed."""

from importlib.metadata import version as installed_version

from stoker.cli.connection import connected
from stoker.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, ApiKey, AsJson, Headers, Model, Timeout, Url, Version
from stoker.cli.output import print_json, print_line, print_table


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
    as_json: AsJson = False,  # the same either way; accepted so that every command takes it
    api_key: ApiKey = None,
    headers: Headers = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Print a model's configuration as the server completed it, as JSON."""
    with connected(url, api_key, timeout, headers) as client:
        print_json(client.model_config(model, version))


def version(as_json: AsJson = False) -> None:
    """Print the installed versions."""
    versions = {name: installed_version(name) for name in ("stoker", "stoker-client")}
    if as_json:
        print_json(versions)
    else:
        for name, text in versions.items():
            print_line(f"{name} {text}")
