"""The documents of models: HTML pages without scripts or external resources, and OpenAPI 3.1 with a model's own names, types and shapes.

Pages escape every name, and their content security policy allows no script. A click on a call selects all of it.
"""

from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.core.state import IndexEntry, ModelDescription
from stoker.server.web.model_pages.calls import Call
from stoker.server.web.model_pages.samples import Sample

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
    facts += ["returns any number of responses to a request"] if signature.is_decoupled else []
    if config.sequences is not None:
        facts.append("the model may execute a request several times" if config.sequences.is_iterative else "requests belong to sequences")
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


_JSON: Final = "application/json"
_REF: Final = "#/components/schemas/"
#: Samples longer than that are left out: the schema says it all, and documents are to be read.
_EXAMPLE_ELEMENTS: Final = 1024

Schema = dict[str, Any]


def model_document(description: ModelDescription, sample: Sample) -> Schema:
    """The document.

    Args:
        description: The version.
        sample: A request for it, with the version asked for; paths name a version if it does.
    """
    config = description.config
    signature = config.signature
    version = "" if sample.version is None else f"/versions/{sample.version}"
    kserve = f"/v2/models/{config.name}{version}"
    serving = f"/v1/models/{config.name}{version}"
    paths: Schema = {
        kserve: {"get": _operation("metadata", "What the model takes and gives", {"type": "object"})},
        f"{kserve}/ready": {"get": _operation("ready", "Whether it serves", {"type": "object"})},
    }
    if not signature.is_decoupled and sample.fits_json:
        if not sample.is_response_binary:
            paths[f"{kserve}/infer"] = {"post": _infer(sample)}
        if not sample.is_sequence:
            paths[f"{serving}:predict"] = {"post": _predict(sample)}
    # From where the document lies to the root of all routes, whatever prefix a proxy puts before it.
    ups = "/".join([".."] * (3 if sample.version is None else 5))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"Model {config.name}",
            "version": str(description.version),
            "description": _about(description, sample),
        },
        "servers": [{"url": ups}],
        "paths": paths,
        "components": {"schemas": _schemas(signature)},
    }


def _about(description: ModelDescription, sample: Sample) -> str:
    signature = description.config.signature
    platform = description.config.platform or description.config.backend
    batch = f"at most {signature.max_batch_size} rows a request" if signature.is_batched else "no batch dimension"
    text = f"Served by {platform}; {batch}."
    if signature.is_decoupled:
        text += " It returns any number of responses to a request: reach it by ModelStreamInfer over gRPC, or by generate_stream."
    elif not sample.fits_json or sample.is_response_binary:
        text += " Its FP16 or BF16 tensors have no form in JSON: they travel as binary data behind it."
    if sample.is_sequence:
        text += " Requests belong to sequences: parameters sequence_id, sequence_start, sequence_end."
    return text


def _infer(sample: Sample) -> Schema:
    body: Schema = {"schema": {"$ref": f"{_REF}InferRequest"}}
    if sum(tensor.count for tensor in sample.inputs) <= _EXAMPLE_ELEMENTS:
        inputs = [
            {"name": each.name, "datatype": each.datatype.value, "shape": list(each.shape), "data": [each.element] * each.count}
            for each in sample.inputs
        ]
        body["example"] = {"inputs": inputs}
        if sample.is_sequence:
            body["example"]["parameters"] = {"sequence_id": sample.sequence_id, "sequence_start": True, "sequence_end": True}
    return {
        **_operation("infer", "Inference, KServe v2", {"$ref": f"{_REF}InferResponse"}),
        "requestBody": {"required": True, "content": {_JSON: body}},
    }


def _predict(sample: Sample) -> Schema:
    body: Schema = {"schema": {"$ref": f"{_REF}PredictRequest"}}
    if sum(tensor.count for tensor in sample.inputs) <= _EXAMPLE_ELEMENTS:
        body["example"] = {"inputs": {each.name: each.nested for each in sample.inputs}}
    return {
        **_operation("predict", "Inference, TensorFlow Serving's columns", {"type": "object"}),
        "requestBody": {"required": True, "content": {_JSON: body}},
    }


def _operation(name: str, summary: str, response: Schema) -> Schema:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "Success", "content": {_JSON: {"schema": response}}},
            "default": {"description": "Failure", "content": {_JSON: {"schema": {"$ref": f"{_REF}Failure"}}}},
        },
    }


def _schemas(signature: ModelSignature) -> Schema:
    required = [spec for spec in signature.inputs if not spec.optional]
    given = {
        "type": "array",
        "minItems": len(required),
        "maxItems": len(signature.inputs),
        "items": {"oneOf": [_tensor_schema(spec, signature) for spec in signature.inputs]},
    }
    outputs = {"type": "array", "items": {"oneOf": [_tensor_schema(spec, signature) for spec in signature.outputs]}}
    wanted = {"type": "object", "required": ["name"], "properties": {"name": {"enum": [spec.name for spec in signature.outputs]}}}
    return {
        "InferRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "id": {"type": "string"},
                "parameters": {"type": "object"},
                "inputs": given,
                "outputs": {"type": "array", "items": wanted},
            },
        },
        "InferResponse": {
            "type": "object",
            "required": ["model_name", "outputs"],
            "properties": {
                "model_name": {"type": "string"},
                "model_version": {"type": "string"},
                "id": {"type": "string"},
                "parameters": {"type": "object"},
                "outputs": outputs,
            },
        },
        "PredictRequest": {
            "type": "object",
            "required": ["inputs"],
            "properties": {
                "inputs": {
                    "type": "object",
                    "required": [spec.name for spec in required],
                    "properties": {spec.name: _rows(spec, signature) for spec in signature.inputs},
                }
            },
        },
        "Failure": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }


def _tensor_schema(spec: TensorSpec, signature: ModelSignature) -> Schema:
    """One tensor of an infer request or response, its data flat or nested."""
    sizes: list[Schema] = [{"type": "integer", "minimum": 1, "maximum": signature.max_batch_size}] if signature.is_batched else []
    sizes += [{"type": "integer", "minimum": 0} if size == VARIABLE else {"const": size} for size in spec.dims]
    shape: Schema = {"type": "array", "minItems": len(sizes), "maxItems": len(sizes)}
    if sizes:
        shape["prefixItems"] = sizes
    return {
        "type": "object",
        "title": spec.name,
        "required": ["name", "datatype", "shape", "data"],
        "properties": {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype.value},
            "shape": shape,
            "data": {"type": "array", "items": {"anyOf": [_element(spec.datatype), {"type": "array"}]}},
        },
    }


def _rows(spec: TensorSpec, signature: ModelSignature) -> Schema:
    """The tensor as nested lists."""
    schema = _element(spec.datatype)
    if spec.datatype.is_bytes:
        b64 = {"type": "object", "required": ["b64"], "properties": {"b64": {"type": "string", "contentEncoding": "base64"}}}
        schema = {"anyOf": [schema, b64]}
    for size in reversed(spec.dims):
        schema = {"type": "array", "items": schema}
        if size != VARIABLE:
            schema |= {"minItems": size, "maxItems": size}
    if signature.is_batched:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": signature.max_batch_size}
    return schema


def _element(datatype: DataType) -> Schema:
    if datatype.is_bytes:
        return {"type": "string"}
    if datatype is DataType.BOOL:
        return {"type": "boolean"}
    if datatype.numpy.kind == "f":
        return {"type": "number"}
    if datatype is DataType.BF16:
        return {"type": "number"}
    bits = 8 * datatype.item_bytes
    if datatype.numpy.kind == "u":
        return {"type": "integer", "minimum": 0, "maximum": 2**bits - 1}
    return {"type": "integer", "minimum": -(2 ** (bits - 1)), "maximum": 2 ** (bits - 1) - 1}
