"""Converts a TensorFlow signature to KServe's metadata."""

from collections.abc import Mapping

from stoker_client._pb import tfs_messages as pb
from stoker_client.dialect import Facts
from stoker_client.errors import InvalidResponse
from stoker_client.tensorflow_tensors import wire_name

#: The signature that TensorFlow Serving uses if a request names none.
DEFAULT_SIGNATURE = "serving_default"


def model_facts(spec: pb.ModelSpec, signatures: pb.SignatureDefMap, model: str) -> Facts:
    """The inputs and outputs of the default signature, by tensor name.

    Raises:
        InvalidResponse: there is no default signature.
    """
    if DEFAULT_SIGNATURE not in signatures.signature_def:
        found = ", ".join(sorted(signatures.signature_def)) or "none"
        raise InvalidResponse(f"model '{model}' has no signature '{DEFAULT_SIGNATURE}'; it has {found}")
    signature = signatures.signature_def[DEFAULT_SIGNATURE]
    return {
        "name": model,
        "versions": [str(spec.version.value)] if spec.HasField("version") else [],
        "platform": "",
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
    }


def _tensors(tensors: Mapping[str, pb.TensorInfo]) -> list[Facts]:
    return [
        {"name": name, "datatype": wire_name(tensors[name].dtype), "shape": [dim.size for dim in tensors[name].tensor_shape.dim]}
        for name in sorted(tensors)
    ]
