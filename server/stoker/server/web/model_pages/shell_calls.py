"""Calls by curl and grpcurl. Names go through the shell's own quoting; a short Python program makes a body that is too long to read."""

import base64
import json
import shlex
from collections.abc import Sequence
from typing import Any, Final

from stoker.server.web.model_pages.addresses import CallAddresses
from stoker.server.web.model_pages.calls import Call
from stoker.server.web.model_pages.samples import TEXT, Sample, SampleTensor

_NO_JSON: Final = "FP16 and BF16 tensors travel as binary only."
#: How a command sends the key that this server requires: the reader's shell holds it.
_BEARER: Final = '"Authorization: Bearer $STOKER_API_KEY"'
#: The field of typed contents that holds elements of a type.
_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def shell_calls(sample: Sample, addresses: CallAddresses, *, has_reflection: bool) -> list[Call]:
    """Every call from a shell that fits the model."""
    calls = []
    if not sample.is_decoupled:
        if sample.fits_json and not sample.is_response_binary:
            calls.append(Call("curl, JSON", "curl-json", "sh", _curl_json(sample, addresses)))
        calls.append(_curl_binary(sample, addresses))
        if sample.fits_json and not sample.is_sequence:
            calls.append(Call("curl, TensorFlow Serving's REST", "curl-tfs", "sh", _curl_tfs(sample, addresses)))
    elif sample.fits_json and sample.is_printed:
        note = "Each answer is a server-sent event; -N prints it as it comes."
        calls.append(Call("curl, server-sent events", "curl-generate-stream", "sh", _curl_generate(sample, addresses), note))
    if addresses.grpc is not None and sample.fits_json:
        note = "" if has_reflection else "Needs a server started with --grpc-reflection."
        calls.append(Call("grpcurl", "grpcurl", "sh", _grpcurl(sample, addresses), note))
    return calls


def _sequence(sample: Sample) -> dict[str, Any]:
    """The parameters of a sequence of one request."""
    return {"sequence_id": sample.sequence_id, "sequence_start": True, "sequence_end": True}


def infer_path(sample: Sample, verb: str = "infer") -> str:
    """KServe's route to the model."""
    version = "" if sample.version is None else f"/versions/{sample.version}"
    return f"/v2/models/{sample.model}{version}/{verb}"


def _curl_json(sample: Sample, addresses: CallAddresses) -> str:
    rest: dict[str, Any] = {"parameters": _sequence(sample)} if sample.is_sequence else {}
    url = addresses.http_url + infer_path(sample)
    if sample.is_printed:
        inputs = [{**_facts(tensor), "data": [tensor.element] * tensor.count} for tensor in sample.inputs]
        return _posted({**rest, "inputs": inputs}, url, addresses)
    lines = [_python_dict(_facts(tensor), f'"data": [{_python(tensor.element)}] * {tensor.count}') for tensor in sample.inputs]
    return _made(rest, "inputs", lines, f"{_curl(addresses)} {shlex.quote(url)} -d @-")


def _curl_tfs(sample: Sample, addresses: CallAddresses) -> str:
    version = "" if sample.version is None else f"/versions/{sample.version}"
    url = f"{addresses.http_url}/v1/models/{sample.model}{version}:predict"
    if sample.is_printed:
        return _posted({"inputs": {tensor.name: tensor.nested for tensor in sample.inputs}}, url, addresses)
    lines = []
    for tensor in sample.inputs:
        value = _python(tensor.element)
        for size in reversed(tensor.shape):
            value = f"[{value}] * {size}"
        lines.append(f"{_python(tensor.name)}: {value}")
    return _made({}, "inputs", lines, f"{_curl(addresses)} {shlex.quote(url)} -d @-", brackets=("{", "}"))


def _curl_generate(sample: Sample, addresses: CallAddresses) -> str:
    """Flat JSON: the server gives each list its input's shape."""
    body: dict[str, Any] = {
        tensor.name: tensor.element if tensor.count == 1 else [tensor.element] * tensor.count for tensor in sample.inputs
    }
    if sample.is_sequence:
        body["parameters"] = _sequence(sample)
    url = shlex.quote(addresses.http_url + infer_path(sample, "generate_stream"))
    return f"{_curl(addresses, '-sN')} {url} -d {shlex.quote(json.dumps(body))}"


def _curl_binary(sample: Sample, addresses: CallAddresses) -> Call:
    parameters = _sequence(sample) if sample.is_sequence else {}
    if sample.is_response_binary:
        parameters["binary_data_output"] = True
    head: dict[str, Any] = {"parameters": parameters} if parameters else {}
    head["inputs"] = [{**_facts(tensor), "parameters": {"binary_data_size": tensor.size_bytes}} for tensor in sample.inputs]
    text = json.dumps(head)
    parts = [f"printf %s {shlex.quote(text)}", *(_bytes_of(tensor) for tensor in sample.inputs)]
    lines = ";\n  ".join(parts)
    url = shlex.quote(addresses.http_url + infer_path(sample))
    curl = f"{_curl(addresses)} {url} --data-binary @- \\\n  -H 'Inference-Header-Content-Length: {len(text)}'"
    if sample.is_response_binary:
        curl += " -o answer.bin"
    note = "The tensors follow the JSON as raw bytes; with binary_data_output the answer's do, too."
    return Call(
        "curl, binary tensors",
        "curl-binary",
        "sh",
        f"{{ {lines}; }} |\n{curl}",
        note if sample.fits_json and not sample.is_response_binary else f"{_NO_JSON} {note}",
    )


def _bytes_of(tensor: SampleTensor) -> str:
    """A command that prints the tensor's binary form."""
    if not tensor.datatype.is_bytes:
        return f"head -c {tensor.size_bytes} /dev/zero"
    # Each element with its length before it, the least byte first.
    one = f"printf '\\{len(TEXT):o}\\0\\0\\0{TEXT}'"
    return one if tensor.count == 1 else f"for i in $(seq {tensor.count}); do {one}; done"


def _grpcurl(sample: Sample, addresses: CallAddresses) -> str:
    options = ("" if addresses.is_grpc_secure else "-plaintext ") + (f"-H {_BEARER} " if addresses.needs_key else "")
    streaming = sample.is_decoupled
    method = f"inference.GRPCInferenceService/{'ModelStreamInfer' if streaming else 'ModelInfer'}"
    head: dict[str, Any] = {"model_name": sample.model}
    if sample.version is not None:
        head["model_version"] = str(sample.version)
    if sample.is_sequence:
        head["parameters"] = {
            "sequence_id": {"string_param" if isinstance(sample.sequence_id, str) else "int64_param": sample.sequence_id},
            "sequence_start": {"bool_param": True},
            "sequence_end": {"bool_param": True},
        }
    if sample.is_printed:
        contents = [{_CONTENTS[tensor.datatype.value]: [_proto_element(tensor)] * tensor.count} for tensor in sample.inputs]
        inputs = [{**_facts(tensor), "contents": held} for tensor, held in zip(sample.inputs, contents, strict=True)]
        return (
            f"grpcurl {options}-d {shlex.quote(json.dumps({**head, 'inputs': inputs}))} \\\n  {shlex.quote(addresses.grpc or '')} {method}"
        )
    lines = []
    for tensor in sample.inputs:
        elements = f"[{_python(_proto_element(tensor))}] * {tensor.count}"
        lines.append(_python_dict(_facts(tensor), f'"contents": {{{_python(_CONTENTS[tensor.datatype.value])}: {elements}}}'))
    return _made(head, "inputs", lines, f"grpcurl {options}-d @ {shlex.quote(addresses.grpc or '')} {method}")


def _proto_element(tensor: SampleTensor) -> bool | int | float | str:
    return base64.b64encode(TEXT.encode()).decode() if tensor.datatype.is_bytes else tensor.element


def _facts(tensor: SampleTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.value, "shape": list(tensor.shape)}


def _curl(addresses: CallAddresses, flags: str = "-s") -> str:
    return f"curl {flags} -H {_BEARER}" if addresses.needs_key else f"curl {flags}"


def _posted(body: dict[str, Any], url: str, addresses: CallAddresses) -> str:
    return f"{_curl(addresses)} {shlex.quote(url)} -d {shlex.quote(json.dumps(body))}"


def _made(head: dict[str, Any], key: str, lines: Sequence[str], then: str, *, brackets: tuple[str, str] = ("[", "]")) -> str:
    """A Python program that prints `head` and, under `key`, what `lines` hold as JSON, piped into the command `then`."""
    begin = "".join(f"{_python(name)}: {_python(value)}, " for name, value in head.items())
    opening, closing = brackets
    inner = "".join(f"    {line},\n" for line in lines)
    return f"python3 - <<'EOF' | {then}\nimport json\nprint(json.dumps({{{begin}{_python(key)}: {opening}\n{inner}{closing}}}))\nEOF"


def _python_dict(facts: dict[str, Any], last: str) -> str:
    return "{" + "".join(f"{_python(name)}: {_python(value)}, " for name, value in facts.items()) + last + "}"


def _python(value: Any) -> str:
    """`value` as a Python expression on one line, its strings in double quotes: a JSON string is a Python string too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python(name)}: {_python(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
