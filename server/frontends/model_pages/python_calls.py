"""Calls by Python clients: stoker_client, tritonclient over both of its protocols. Names are printed as Python writes them."""

from server.frontends.model_pages.calls import Call
from server.frontends.model_pages.places import Places
from server.frontends.model_pages.samples import TEXT, Sample, SampleTensor


def python_calls(sample: Sample, places: Places) -> list[Call]:
    """Every call from Python that fits the model."""
    calls = [_stoker(sample, places)]
    if not sample.is_decoupled:
        calls.append(
            Call("tritonclient.http", "tritonclient-http", "python", _triton(sample, "http", places.http, secure=places.is_http_secure))
        )
    if places.grpc is not None and not sample.is_decoupled:
        calls.append(
            Call("tritonclient.grpc", "tritonclient-grpc", "python", _triton(sample, "grpc", places.grpc, secure=places.is_grpc_secure))
        )
    return calls


def _stoker(sample: Sample, places: Places) -> Call:
    url = places.http_url if places.grpc is None else places.grpc_url
    needs_type = any(tensor.datatype.value == "BF16" for tensor in sample.inputs)
    arrays = "".join(f"    {tensor.name!r}: {_stoker_array(tensor)},\n" for tensor in sample.inputs)
    more = _arguments(sample)
    if sample.is_sequence:
        more += ', parameters={"sequence_id": 1, "sequence_start": True, "sequence_end": True}'
    if sample.is_decoupled:
        use = f"    for outputs in client.stream({sample.model!r}, [inputs]{more}):\n        print(outputs)\n"
    else:
        printing = "    for name, array in outputs.items():\n        print(name, array.shape, array)\n"
        use = f"    outputs = client.infer({sample.model!r}, inputs{more})\n{printing}"
    imported = "TypedArray, connect" if needs_type else "connect"
    text = f"import numpy as np\nfrom stoker_client import {imported}\n\ninputs = {{\n{arrays}}}\nwith connect({url!r}) as client:\n{use}"
    return Call("stoker_client", "stoker-client", "python", text)


def _triton(sample: Sample, module: str, address: str, *, secure: bool) -> str:
    needs_bf16 = any(tensor.datatype.value == "BF16" for tensor in sample.inputs)
    arrays = "".join(f"    ({tensor.name!r}, {tensor.datatype.value!r}, {_triton_array(tensor)}),\n" for tensor in sample.inputs)
    more = _triton_arguments(sample)
    return (
        ("import ml_dtypes\n" if needs_bf16 else "")
        + f"import numpy as np\nimport tritonclient.{module} as triton\n\n"
        + f"inputs = []\nfor name, datatype, array in [\n{arrays}]:\n"
        + "    tensor = triton.InferInput(name, list(array.shape), datatype)\n"
        + "    tensor.set_data_from_numpy(array)\n    inputs.append(tensor)\n\n"
        + f"client = triton.InferenceServerClient({address!r}{', ssl=True' if secure else ''})\n"
        + f"result = client.infer({sample.model!r}, inputs{more})\nprint(result.as_numpy({sample.first_output!r}))\nclient.close()\n"
    )


def _arguments(sample: Sample) -> str:
    return "" if sample.version is None else f", version={sample.version}"


def _triton_arguments(sample: Sample) -> str:
    version = "" if sample.version is None else f", model_version={str(sample.version)!r}"
    return version + (", sequence_id=1, sequence_start=True, sequence_end=True" if sample.is_sequence else "")


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


def _shape(tensor: SampleTensor) -> str:
    return repr(tensor.shape)
