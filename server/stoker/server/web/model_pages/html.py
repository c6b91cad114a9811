"""The pages of models, as HTML without scripts or anything from elsewhere.

Every name is escaped, and the policy sent along allows no script. A click on a call selects all of it.
"""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final
from urllib.parse import quote

from stoker.backends.api.model import TensorSpec
from stoker.server.core.state import IndexEntry, ModelDescription
from stoker.server.web.model_pages.calls import Call

#: The styles in the page and no more: even a name that escaped its quotes could do nothing.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def list_page(entries: Sequence[IndexEntry]) -> str:
    """All models of the repository, those that serve with a link to their page."""
    rows = []
    for entry in entries:
        # A folder that cannot even be read has no state in the index, but a reason.
        state = entry.state.triton_name if entry.state is not None else "UNAVAILABLE" if entry.reason else "-"
        version = "" if entry.version is None else str(entry.version)
        name = escape(entry.name)
        if state == "READY":
            link = quote(entry.name, safe="")
            name = f'<a href="models/{link}">{name}</a>'
            version = f'<a href="models/{link}/versions/{version}">{version}</a>'
        cells = (name, version, f'<span class="{escape(state)}">{escape(state)}</span>', escape(entry.backend), escape(entry.reason))
        rows.append("".join(f"<td>{cell}</td>" for cell in cells))
    body = _table(("model", "version", "state", "backend", "reason"), rows) if rows else "<p>The repository holds no model.</p>"
    about = '<p>Each model that is READY has a page with calls to paste. All routes: <a href="docs">docs</a>.</p>'
    return _page("Models", f"<h1>Models</h1>{about}{body}")


def model_page(description: ModelDescription, version: int | None, calls: Sequence[Call]) -> str:
    """One model: what it takes and gives, and its calls.

    Args:
        description: The version that serves.
        version: The one asked for; None: the page is of whichever the server chooses.
        calls: What to paste.
    """
    config = description.config
    signature = config.signature
    name = quote(config.name, safe="")
    up = "../../.." if version is not None else ".."
    route = f"{up}/v2/models/{name}" + ("" if version is None else f"/versions/{version}")
    lead = (-1,) if signature.is_batched else ()
    batch = f"up to {signature.max_batch_size} rows a request" if signature.is_batched else "no batch dimension"
    facts = [f"version {description.version}", config.platform or config.backend, batch]
    facts += ["answers a request any number of times"] if signature.is_decoupled else []
    facts += ["requests belong to sequences"] if config.sequences is not None else []
    tensors = [_tensor("input", spec, lead) for spec in signature.inputs] + [_tensor("output", spec, lead) for spec in signature.outputs]
    parts = [
        f'<nav><a href="{up}/models">Models</a></nav>',
        f"<h1>{escape(config.name)}</h1>",
        f'<p>{escape(", ".join(facts))}. <a href="{escape(route)}/openapi.json">openapi.json</a></p>',
        _table(("", "name", "type", "shape", ""), tensors),
        *(_call(call) for call in calls),
    ]
    return _page(config.name, "".join(parts))


def error_page(up: str, message: str) -> str:
    """The page that stands for one that cannot be shown; `up` leads to the root of all routes."""
    body = f'<nav><a href="{up}/models">Models</a></nav><h1>No such page</h1><p>{escape(message)}</p>'
    return _page("No such page", body)


def _tensor(kind: str, spec: TensorSpec, lead: tuple[int, ...]) -> str:
    note = "optional" if spec.optional else ""
    cells = (kind, f"<code>{escape(spec.name)}</code>", spec.datatype.value, escape(str([*lead, *spec.dims])), note)
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _call(call: Call) -> str:
    note = f"<p>{escape(call.note)}</p>" if call.note else ""
    return f'<h2 id="{escape(call.key)}">{escape(call.title)}</h2>{note}<pre><code>{escape(call.text)}</code></pre>'


def _table(columns: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{row}</tr>" for row in rows)}</table></div>'


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body>{body}</body></html>\n"
    )


@cache
def _style() -> str:
    return files("stoker.server.web").joinpath("pages/model_pages.css").read_text(encoding="utf-8")
