"""Calls by Python clients: stoker_client, tritonclient over both of its protocols. Names are printed as Python string literals."""

import json

from stoker.server.web.model_pages.addresses import CallAddresses
from stoker.server.web.model_pages.calls import Call
from stoker.server.web.model_pages.samples import TEXT, Sample, SampleTensor


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
        calls.append(Call(f"tritonclient.{module}", f"tritonclient-{module}", "python", text))
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
        ("import os\n\n" if addresses.needs_key else "")
        + f"import numpy as np\nfrom stoker_client import {imported}\n\ninputs = {{\n{arrays}}}\n"
        + f"with connect({_text(url)}{key}) as client:\n{use}"
    )
    return Call("stoker_client", "stoker-client", "python", text)


def _triton(sample: Sample, module: str, address: str, *, secure: bool, needs_key: bool) -> str:
    needs_bf16 = any(tensor.datatype.value == "BF16" for tensor in sample.inputs)
    rows = ((_text(tensor.name), _text(tensor.datatype.value), _triton_array(tensor)) for tensor in sample.inputs)
    arrays = "".join(f"    ({', '.join(row)}),\n" for row in rows)
    more = _triton_arguments(sample)
    if needs_key:
        more += ', headers={"authorization": f"Bearer {os.environ[\'STOKER_API_KEY\']}"}'
    return (
        ("import os\n\n" if needs_key else "")
        + ("import ml_dtypes\n" if needs_bf16 else "")
        + f"import numpy as np\nimport tritonclient.{module} as triton\n\n"
        + f"inputs = []\nfor name, datatype, array in [\n{arrays}]:\n"
        + "    tensor = triton.InferInput(name, list(array.shape), datatype)\n"
        + "    tensor.set_data_from_numpy(array)\n    inputs.append(tensor)\n\n"
        + f"client = triton.InferenceServerClient({_text(address)}{', ssl=True' if secure else ''})\n"
        + f"result = client.infer({_text(sample.model)}, inputs{more})\n"
        + f"print(result.as_numpy({_text(sample.first_output)}))\nclient.close()\n"
    )


def _arguments(sample: Sample) -> str:
    return "" if sample.version is None else f", version={sample.version}"


def _triton_arguments(sample: Sample) -> str:
    version = "" if sample.version is None else f", model_version={_text(str(sample.version))}"
    return version + (f", sequence_id={sample.sequence_id!r}, sequence_start=True, sequence_end=True" if sample.is_sequence else "")


def _stoker_array(tensor: SampleTensor) -> str:
    if tensor.datatype.value == "BF16":
        return f'TypedArray(np.zeros({_shape(tensor)}, np.uint16), "BF16")'
    return _array(tensor)


def _triton_array(tensor: SampleTensor) -> str:
    return f"np.zeros({_shape(tensor)}, ml_dtypes.bfloat16)" if tensor.datatype.value == "BF16" else _array(tensor)


def _array(tensor: SampleTensor) -> str:
    if tensor.datatype.is_bytes:
        return f"np.full({_shape(tensor)}, {TEXT.encode()!r}, np.object_)"
    name = tensor.datatype.numpy.name
    return f"np.zeros({_shape(tensor)}, np.{'bool_' if name == 'bool' else name})"


def _text(value: str) -> str:
    """A string literal in double quotes. JSON's escapes are Python's, except those of surrogate pairs, which `ensure_ascii` avoids."""
    return json.dumps(value, ensure_ascii=False)


def _shape(tensor: SampleTensor) -> str:
    return repr(tensor.shape)
