"""Calls to a model as text to paste: curl, grpcurl and Python clients, with the addresses of the request for the page.

Names go through the shell's own quoting, or are Python string literals; a short Python program makes a body that is too long to read.
"""

import base64
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker.server.web.model_pages.samples import TEXT, Sample, SampleTensor, nested_lists
from stoker.server.web.settings import GrpcAddress

#: Host headers that a page shows; any other value may be an attack.
_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallAddresses:
    """Addresses for calls.

    Attributes:
        http: `host:port` of the HTTP front; the port may be left out.
        is_http_secure: Whether it speaks TLS.
        grpc: `host:port`; None: there is no gRPC port.
        needs_key: Whether calls require an API key.
    """

    http: str
    is_http_secure: bool
    grpc: str | None
    is_grpc_secure: bool
    needs_key: bool = False

    @property
    def http_url(self) -> str:
        """The HTTP address with its scheme."""
        return f"{'https' if self.is_http_secure else 'http'}://{self.http}"

    @property
    def grpc_url(self) -> str:
        """The gRPC address with its scheme, as stoker_client takes it."""
        return f"{'grpcs' if self.is_grpc_secure else 'grpc'}://{self.grpc}"


def addresses(host: str, scheme: str, grpc_address: GrpcAddress | None, *, needs_key: bool = False) -> CallAddresses:
    """The addresses that follow from a request for the page.

    Args:
        host: Its Host header.
        scheme: The scheme of the request: `http` or `https`.
        grpc_address: The gRPC port; None: there is none.
        needs_key: Whether calls require an API key.
    """
    known = _HOST.match(host)
    if known is None:
        host, name = "localhost:8501", "localhost"
    else:
        name = known[1]
    return CallAddresses(
        host,
        scheme == "https",
        None if grpc_address is None else f"{name}:{grpc_address.port}",
        grpc_address is not None and grpc_address.is_secure,
        needs_key,
    )


@dataclass(frozen=True, slots=True)
class CallFile:
    """A file that a call reads, with data of the user.

    Attributes:
        form: `npy`, `json` (a list of texts) or `raw` for one tensor; `kserve`, `kserve-binary`, `tfs`, `generate` or `grpc` for a whole
            request in that protocol.
        tensor: The input; empty for a whole request.
    """

    name: str
    form: str
    tensor: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call.

    Attributes:
        title: Which protocol, by which client.
        key: Short and stable: the anchor on the page.
        language: `sh` or `python`.
        text: What to paste.
        note: A hint for the reader; may be empty.
        files: What it reads.
    """

    title: str
    key: str
    language: str
    text: str
    note: str = ""
    files: tuple[CallFile, ...] = ()


_JSON_FILE: Final = CallFile("request.json", "kserve")
_BINARY_FILE: Final = CallFile("request.bin", "kserve-binary")
_TFS_FILE: Final = CallFile("predict.json", "tfs")
_GENERATE_FILE: Final = CallFile("generate.json", "generate")
_GRPC_FILE: Final = CallFile("grpc.json", "grpc")
_NO_JSON: Final = "FP16 and BF16 tensors travel as binary only."
#: The option of a command that sends the required key, which is read from a shell variable.
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

    def add(title: str, key: str, text: str, body: CallFile, note: str = "") -> None:
        calls.append(Call(title, key, "sh", text, note, (body,) if sample.is_in_files else ()))

    if not sample.is_decoupled:
        if sample.fits_json and not (sample.is_response_binary or sample.has_raw_bytes):
            add("curl, JSON", "curl-json", _curl_json(sample, addresses), _JSON_FILE)
        calls.append(_curl_binary(sample, addresses))
        if sample.fits_json and not sample.is_sequence:
            add("curl, TensorFlow Serving's REST", "curl-tfs", _curl_tfs(sample, addresses), _TFS_FILE)
    elif sample.fits_json and (sample.is_printed or sample.is_in_files) and not sample.has_raw_bytes:
        note = "Each response is a server-sent event; -N prints it as it arrives."
        add("curl, server-sent events", "curl-generate-stream", _curl_generate(sample, addresses), _GENERATE_FILE, note)
    if addresses.grpc is not None and sample.fits_json:
        note = "" if has_reflection else "Needs a server started with --grpc-reflection."
        add("grpcurl", "grpcurl", _grpcurl(sample, addresses), _GRPC_FILE, note)
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
    if sample.is_in_files:
        return _posted_file(_JSON_FILE, url, addresses)
    if sample.is_printed:
        inputs = [{**_facts(tensor), "data": tensor.flat} for tensor in sample.inputs]
        return _posted({**rest, "inputs": inputs}, url, addresses)
    lines = [_python_dict(_facts(tensor), f'"data": {_python_list(tensor)}') for tensor in sample.inputs]
    return _made(rest, "inputs", lines, f"{_curl(addresses)} {shlex.quote(url)} -d @-")


def _curl_tfs(sample: Sample, addresses: CallAddresses) -> str:
    version = "" if sample.version is None else f"/versions/{sample.version}"
    url = f"{addresses.http_url}/v1/models/{sample.model}{version}:predict"
    if sample.is_in_files:
        return _posted_file(_TFS_FILE, url, addresses)
    if sample.is_printed:
        return _posted({"inputs": {tensor.name: tensor.nested for tensor in sample.inputs}}, url, addresses)
    lines = []
    for tensor in sample.inputs:
        if tensor.values is None:
            value = _python(tensor.element)
            for size in reversed(tensor.shape):
                value = f"[{value}] * {size}"
        else:
            value = _python(tensor.nested)
        lines.append(f"{_python(tensor.name)}: {value}")
    return _made({}, "inputs", lines, f"{_curl(addresses)} {shlex.quote(url)} -d @-", brackets=("{", "}"))


def _curl_generate(sample: Sample, addresses: CallAddresses) -> str:
    """Flat JSON: the server gives each list its input's shape."""
    url = shlex.quote(addresses.http_url + infer_path(sample, "generate_stream"))
    if sample.is_in_files:
        return f"{_curl(addresses, '-sN')} {url} -d @{_GENERATE_FILE.name}"
    body: dict[str, Any] = {tensor.name: tensor.flat[0] if tensor.count == 1 else tensor.flat for tensor in sample.inputs}
    if sample.is_sequence:
        body["parameters"] = _sequence(sample)
    return f"{_curl(addresses, '-sN')} {url} -d {shlex.quote(json.dumps(body))}"


def _curl_binary(sample: Sample, addresses: CallAddresses) -> Call:
    parameters = _sequence(sample) if sample.is_sequence else {}
    if sample.is_response_binary:
        parameters["binary_data_output"] = True
    head: dict[str, Any] = {"parameters": parameters} if parameters else {}
    head["inputs"] = [{**_facts(tensor), "parameters": {"binary_data_size": tensor.size_bytes}} for tensor in sample.inputs]
    text = json.dumps(head)
    note = "The tensors follow the JSON as raw bytes; with binary_data_output those of the response do, too."
    if not sample.fits_json or sample.is_response_binary:
        note = f"{_NO_JSON} {note}"
    if sample.is_given:
        text = (
            f"{_curl(addresses)} {shlex.quote(addresses.http_url + infer_path(sample))} --data-binary @{_BINARY_FILE.name} \\\n"
            f"  -H 'Inference-Header-Content-Length: {sample.head_bytes}'" + (" -o response.bin" if sample.is_response_binary else "")
        )
        return Call("curl, binary tensors", "curl-binary", "sh", text, note, (_BINARY_FILE,))
    parts = [f"printf %s {shlex.quote(text)}", *(_bytes_of(tensor) for tensor in sample.inputs)]
    lines = ";\n  ".join(parts)
    url = shlex.quote(addresses.http_url + infer_path(sample))
    curl = f"{_curl(addresses)} {url} --data-binary @- \\\n  -H 'Inference-Header-Content-Length: {len(text)}'"
    if sample.is_response_binary:
        curl += " -o response.bin"
    return Call("curl, binary tensors", "curl-binary", "sh", f"{{ {lines}; }} |\n{curl}", note)


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
    if sample.is_in_files:
        return f"grpcurl {options}-d @ {shlex.quote(addresses.grpc or '')} {method} < {_GRPC_FILE.name}"
    if sample.is_sequence:
        head["parameters"] = {
            "sequence_id": {"string_param" if isinstance(sample.sequence_id, str) else "int64_param": sample.sequence_id},
            "sequence_start": {"bool_param": True},
            "sequence_end": {"bool_param": True},
        }
    if sample.is_printed:
        contents = [{_CONTENTS[tensor.datatype.value]: _proto_elements(tensor)} for tensor in sample.inputs]
        inputs = [{**_facts(tensor), "contents": held} for tensor, held in zip(sample.inputs, contents, strict=True)]
        return (
            f"grpcurl {options}-d {shlex.quote(json.dumps({**head, 'inputs': inputs}))} \\\n  {shlex.quote(addresses.grpc or '')} {method}"
        )
    lines = []
    for tensor in sample.inputs:
        elements = _python_list(tensor, is_base64=True)
        lines.append(_python_dict(_facts(tensor), f'"contents": {{{_python(_CONTENTS[tensor.datatype.value])}: {elements}}}'))
    return _made(head, "inputs", lines, f"grpcurl {options}-d @ {shlex.quote(addresses.grpc or '')} {method}")


def _proto_elements(tensor: SampleTensor) -> list[Any]:
    return [base64.b64encode(str(each).encode()).decode() if tensor.datatype.is_bytes else each for each in tensor.flat]


def _facts(tensor: SampleTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype.value, "shape": list(tensor.shape)}


def _curl(addresses: CallAddresses, flags: str = "-s") -> str:
    return f"curl {flags} -H {_BEARER}" if addresses.needs_key else f"curl {flags}"


def _posted_file(file: CallFile, url: str, addresses: CallAddresses) -> str:
    return f"{_curl(addresses)} {shlex.quote(url)} -d @{file.name}"


def _posted(body: dict[str, Any], url: str, addresses: CallAddresses) -> str:
    return f"{_curl(addresses)} {shlex.quote(url)} -d {shlex.quote(json.dumps(body))}"


def _made(head: dict[str, Any], key: str, lines: Sequence[str], then: str, *, brackets: tuple[str, str] = ("[", "]")) -> str:
    """A Python program that prints `head` and, under `key`, what `lines` hold as JSON, piped into the command `then`."""
    begin = "".join(f"{_python(name)}: {_python(value)}, " for name, value in head.items())
    opening, closing = brackets
    inner = "".join(f"    {line},\n" for line in lines)
    return f"python3 - <<'EOF' | {then}\nimport json\nprint(json.dumps({{{begin}{_python(key)}: {opening}\n{inner}{closing}}}))\nEOF"


def _python_list(tensor: SampleTensor, *, is_base64: bool = False) -> str:
    """The elements of a tensor as a Python expression."""
    elements = _proto_elements(tensor) if is_base64 else tensor.flat
    return f"[{_python(elements[0])}] * {tensor.count}" if tensor.values is None and elements else _python(elements)


def _python_dict(facts: dict[str, Any], last: str) -> str:
    return "{" + "".join(f"{_python(name)}: {_python(value)}, " for name, value in facts.items()) + last + "}"


def _python(value: Any) -> str:
    """`value` as a Python expression on one line, its strings in double quotes: a JSON string is a Python string too."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python(name)}: {_python(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def python_calls(sample: Sample, addresses: CallAddresses) -> list[Call]:
    """Every call from Python that fits the model."""
    calls = [_stoker(sample, addresses)]
    if sample.is_decoupled:
        return calls
    ways = [("http", addresses.http, addresses.is_http_secure)]
    if addresses.grpc is not None:
        ways.append(("grpc", addresses.grpc, addresses.is_grpc_secure))
    for module, address, secure in ways:
        text = _triton(sample, module, address, secure=secure, needs_key=addresses.needs_key)
        calls.append(Call(f"tritonclient.{module}", f"tritonclient-{module}", "python", text, files=_tensor_files(sample)))
    return calls


def _stoker(sample: Sample, addresses: CallAddresses) -> Call:
    url = addresses.http_url if addresses.grpc is None else addresses.grpc_url
    needs_type = any(tensor.datatype.value == "BF16" for tensor in sample.inputs)
    arrays = "".join(f"    {_text(tensor.name)}: {_stoker_array(tensor)},\n" for tensor in sample.inputs)
    more = _arguments(sample)
    if sample.is_sequence:
        more += f', parameters={{"sequence_id": {sample.sequence_id!r}, "sequence_start": True, "sequence_end": True}}'
    if sample.is_decoupled:
        use = f"    for outputs in client.stream({_text(sample.model)}, [inputs]{more}):\n        print(outputs)\n"
    else:
        printing = "    for name, array in outputs.items():\n        print(name, array.shape, array)\n"
        use = f"    outputs = client.infer({_text(sample.model)}, inputs{more})\n{printing}"
    imported = "TypedArray, connect" if needs_type else "connect"
    key = ', api_key=os.environ["STOKER_API_KEY"]' if addresses.needs_key else ""
    text = (
        _standard_imports(sample, needs_key=addresses.needs_key)
        + f"import numpy as np\nfrom stoker_client import {imported}\n\ninputs = {{\n{arrays}}}\n"
        + f"with connect({_text(url)}{key}) as client:\n{use}"
    )
    return Call("stoker_client", "stoker-client", "python", text, files=_tensor_files(sample))


def _triton(sample: Sample, module: str, address: str, *, secure: bool, needs_key: bool) -> str:
    needs_bf16 = any(tensor.datatype.value == "BF16" for tensor in sample.inputs)
    rows = ((_text(tensor.name), _text(tensor.datatype.value), _triton_array(tensor)) for tensor in sample.inputs)
    arrays = "".join(f"    ({', '.join(row)}),\n" for row in rows)
    more = _triton_arguments(sample)
    if needs_key:
        more += ', headers={"authorization": f"Bearer {os.environ[\'STOKER_API_KEY\']}"}'
    return (
        _standard_imports(sample, needs_key=needs_key)
        + ("import ml_dtypes\n" if needs_bf16 else "")
        + f"import numpy as np\nimport tritonclient.{module} as triton\n\n"
        + f"inputs = []\nfor name, datatype, array in [\n{arrays}]:\n"
        + "    tensor = triton.InferInput(name, list(array.shape), datatype)\n"
        + "    tensor.set_data_from_numpy(array)\n    inputs.append(tensor)\n\n"
        + f"client = triton.InferenceServerClient({_text(address)}{', ssl=True' if secure else ''})\n"
        + f"result = client.infer({_text(sample.model)}, inputs{more})\n"
        + f"print(result.as_numpy({_text(sample.first_output)}))\nclient.close()\n"
    )


def _standard_imports(sample: Sample, *, needs_key: bool) -> str:
    files = {tensor.file.rpartition(".")[2] for tensor in sample.inputs}
    lines = [
        *(["import json\n"] if "json" in files else []),
        *(["import os\n"] if needs_key else []),
        *(["from pathlib import Path\n"] if files & {"json", "bin"} else []),
    ]
    return "".join(lines) + "\n" if lines else ""


def _tensor_files(sample: Sample) -> tuple[CallFile, ...]:
    forms = {"npy": "npy", "json": "json", "bin": "raw"}
    return tuple(CallFile(each.file, forms[each.file.rpartition(".")[2]], each.name) for each in sample.inputs if each.file)


def _arguments(sample: Sample) -> str:
    return "" if sample.version is None else f", version={sample.version}"


def _triton_arguments(sample: Sample) -> str:
    version = "" if sample.version is None else f", model_version={_text(str(sample.version))}"
    return version + (f", sequence_id={sample.sequence_id!r}, sequence_start=True, sequence_end=True" if sample.is_sequence else "")


def _stoker_array(tensor: SampleTensor) -> str:
    if tensor.datatype.value == "BF16":
        bits = f'np.load("{tensor.file}")' if tensor.file else _bf16_bits(tensor)
        return f'TypedArray({bits}, "BF16")'
    return _array(tensor)


def _triton_array(tensor: SampleTensor) -> str:
    if tensor.datatype.value != "BF16":
        return _array(tensor)
    if tensor.file:
        return f'np.load("{tensor.file}").view(ml_dtypes.bfloat16)'
    if tensor.values is not None:
        return f"np.array({_python(tensor.nested)}, ml_dtypes.bfloat16)"
    return f"np.zeros({_shape(tensor)}, ml_dtypes.bfloat16)"


def _bf16_bits(tensor: SampleTensor) -> str:
    """The upper halves of float32 numbers, in which stoker_client takes BF16."""
    if tensor.values is None:
        return f"np.zeros({_shape(tensor)}, np.uint16)"
    return f"(np.array({_python(tensor.nested)}, np.float32).view(np.uint32) >> 16).astype(np.uint16)"


def _array(tensor: SampleTensor) -> str:
    if tensor.file.endswith(".npy"):
        return f'np.load("{tensor.file}")'
    if tensor.file.endswith(".json"):
        return f'np.array(json.loads(Path("{tensor.file}").read_text()), np.object_).reshape({_shape(tensor)})'
    if tensor.file:
        return f'np.array([Path("{tensor.file}").read_bytes()], np.object_).reshape({_shape(tensor)})'
    if tensor.datatype.is_bytes and tensor.values is not None:
        return f"np.array({nested_lists([str(each).encode() for each in tensor.flat], tensor.shape)!r}, np.object_)"
    if tensor.datatype.is_bytes:
        return f"np.full({_shape(tensor)}, {TEXT.encode()!r}, np.object_)"
    name = "bool_" if tensor.datatype.numpy.name == "bool" else tensor.datatype.numpy.name
    if tensor.values is not None:
        return f"np.array({_python(tensor.nested)}, np.{name}).reshape({_shape(tensor)})"
    return f"np.zeros({_shape(tensor)}, np.{name})"


def _text(value: str) -> str:
    """A string literal in double quotes. JSON's escapes are Python's, except those of surrogate pairs, which `ensure_ascii` avoids."""
    return json.dumps(value, ensure_ascii=False)


def _shape(tensor: SampleTensor) -> str:
    return repr(tensor.shape)
