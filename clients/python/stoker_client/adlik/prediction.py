"""Builds a prediction request from arrays by input name and the requested outputs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message

from stoker_client._pb import adlik_messages as pb
from stoker_client.adlik.tensor_proto import set_array, tensor_dtype_to_np_dtype
from stoker_client.datatypes import Array
from stoker_client.errors import InvalidRequest

#: A list or array whose first dimension is the batch, or a TensorProto of any library.
InputValue = Sequence[Any] | Array | Message
#: Output names; or, by name, how many of the best classes to return: a number, `{"cls": number}`, a `PredictRequest.Output`, None for none.
OutputChoice = str | Iterable[str] | Mapping[str, Any] | None

_UINT32 = range(2**32)
#: For each numpy kind of Python numbers, the kinds that they may be converted to with no loss but precision.
_FITTING = {"b": "b", "i": "iufc", "u": "iufc", "f": "fc", "c": "c"}


def model_spec(name: str, version: int | str | None, signature: str | None) -> pb.ModelSpec:
    """The spec of a model: a number is a version, a string a version label, None the server's choice.

    Raises:
        InvalidRequest: it is neither.
    """
    spec = pb.ModelSpec(name=name, signature_name=signature or "")
    if isinstance(version, bool) or not isinstance(version, int | str | None):
        raise InvalidRequest(f"model_version is {version!r}; expected a number, a label or None")
    if isinstance(version, str):
        spec.version_label = version
    elif version is not None:
        spec.version.value = version
    return spec


def build_request(
    spec: pb.ModelSpec, inputs: Mapping[str, InputValue], outputs: OutputChoice, batch_size: int | None, config: pb.ModelConfigProto
) -> pb.PredictRequest:
    """The request.

    Args:
        spec: The model's spec.
        inputs: By name; the first dimension is the batch.
        outputs: The requested outputs; None or empty: all.
        batch_size: None: that of the inputs.
        config: The model's configuration, which gives the types for plain Python numbers.

    Raises:
        InvalidRequest: batch sizes differ, or a value cannot be encoded.
    """
    if not inputs:
        raise InvalidRequest("no inputs are given")
    types = {tensor.name: tensor.data_type for tensor in config.input}
    request = pb.PredictRequest(model_spec=spec)
    for name, value in inputs.items():
        _set_input(request.inputs[name], name, value, types.get(name, pb.DT_INVALID))
    request.batch_size = _batch_size({name: request.inputs[name] for name in inputs}, batch_size)
    for name, count in _classes(outputs).items():
        request.output_filter[name].SetInParent()
        if count is not None:
            request.output_filter[name].cls.count = count
    return request


def chosen_names(outputs: OutputChoice) -> list[str]:
    """The names of the requested outputs; empty for all."""
    return list(_classes(outputs))


def _set_input(tensor: pb.TensorProto, name: str, value: InputValue, configured: int) -> None:
    if isinstance(value, Message):
        if value.DESCRIPTOR.full_name != "tensorflow.TensorProto":
            raise InvalidRequest(f"input '{name}' is a {value.DESCRIPTOR.full_name}; expected an array, a list or a tensorflow.TensorProto")
        tensor.ParseFromString(value.SerializeToString())  # TensorFlow's class has the same fields
    elif isinstance(value, np.ndarray | list | tuple):
        set_array(tensor, name, _as_array(name, value, configured))
    else:
        raise InvalidRequest(
            f"input '{name}' is a {type(value).__name__}; expected an array, a list or a tuple with a value for each sample"
        )


def _as_array(name: str, value: Sequence[Any] | Array, configured: int) -> Array:
    """Converts to an array. Arrays keep their type; Python numbers get the configured type if possible (numpy makes `[1.5]` FP64)."""
    try:
        array = np.asarray(value)
        if array.dtype.kind in "SU":
            return np.asarray(value, dtype=np.object_)  # numpy's string types drop trailing NULs
        wanted = tensor_dtype_to_np_dtype(configured)
        if (
            wanted is None
            or configured == pb.DT_BFLOAT16
            or _is_numpy(value)
            or np.dtype(wanted).kind not in _FITTING.get(array.dtype.kind, "")
        ):
            return array
        return np.asarray(value, dtype=wanted)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"input '{name}' is not an array of {pb.DataType.Name(configured)}: {error}") from error


def _is_numpy(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, np.ndarray | np.generic)


def _batch_size(inputs: Mapping[str, pb.TensorProto], stated: int | None) -> int:
    sizes = {}
    for name, tensor in inputs.items():
        if not tensor.tensor_shape.dim:
            raise InvalidRequest(f"input '{name}' has no batch dimension")
        sizes[name] = tensor.tensor_shape.dim[0].size
    size = next(iter(sizes.values())) if stated is None else stated
    wrong = [f"'{name}' has {found}" for name, found in sizes.items() if found != size]
    if wrong:
        raise InvalidRequest(f"batch_size is {size}, but input {', '.join(wrong)}")
    if size < 1:
        raise InvalidRequest(f"batch_size is {size}; expected at least 1")
    return size


def _classes(outputs: OutputChoice) -> dict[str, int | None]:
    """By output name, how many of the best classes are requested; None: only the tensor."""
    if outputs is None:
        return {}
    if isinstance(outputs, str):
        return {outputs: None}
    if isinstance(outputs, Mapping):
        return {name: _count(name, choice) for name, choice in outputs.items()}
    return dict.fromkeys(outputs)


def _count(name: str, choice: Any) -> int | None:
    if isinstance(choice, Message) and choice.DESCRIPTOR.full_name == "adlik.serving.PredictRequest.Output":
        output = pb.PredictRequest.Output.FromString(choice.SerializeToString())
        return output.cls.count if output.HasField("cls") else None
    if isinstance(choice, Mapping):
        choice = choice.get("cls")
    if choice is None:
        return None
    if isinstance(choice, bool) or not isinstance(choice, int) or choice not in _UINT32:
        raise InvalidRequest(f"output '{name}' is asked for as {choice!r}; expected a number of classes, {{'cls': number}} or None")
    return choice
