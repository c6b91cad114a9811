"""Predictions and metadata in TensorFlow Serving's REST form, with tensors as JSON numbers in columns (`inputs` and `outputs`).

The JSON response does not contain the type of an output nor, if there is only one, its name: both come from the model's metadata.
"""

import base64
import json
from typing import Any
from urllib.parse import quote

import numpy as np
from google.protobuf import json_format

from stoker_client._pb import tfs_messages as pb
from stoker_client.datatypes import BYTES, NUMPY_TYPES, Array, bf16_to_float32, float32_to_bf16
from stoker_client.dialect import Call, Facts
from stoker_client.errors import InvalidResponse
from stoker_client.http_dialect import HttpReply, HttpRequest, object_of
from stoker_client.inference import InferRequest, InferResult, TensorInfo
from stoker_client.tensors import EncodedTensor, decode_raw
from stoker_client.tfs.signature import model_facts


class TfsRestDialect:
    """TensorFlow Serving over REST; a `PredictDialect`."""

    def metadata(self, model: str, version: str) -> tuple[Call[Facts], ...]:
        """See `PredictDialect`. Adlik has the same route: the query selects TensorFlow Serving's form if Adlik's is the default."""

        def parse(reply: HttpReply) -> Facts:
            response = object_of(reply)
            try:
                signatures = response["metadata"]["signature_def"]
                found = json_format.ParseDict(signatures, pb.SignatureDefMap(), ignore_unknown_fields=True, descriptor_pool=pb.POOL)
                spec = {key: value for key, value in response.get("model_spec", {}).items() if key in ("name", "version")}
                return model_facts(json_format.ParseDict(spec, pb.ModelSpec(), descriptor_pool=pb.POOL), found, model)
            except (KeyError, TypeError, AttributeError, json_format.ParseError) as error:
                raise InvalidResponse(f"the metadata of model '{model}' is not TensorFlow Serving's: {error!r}") from error

        route = f"{_route(model, version)}/metadata"
        return tuple(Call(HttpRequest("GET", route + query, b"", {}), parse, is_read=True) for query in ("", "?format=tfs"))

    def infer(self, request: InferRequest, facts: Facts) -> Call[InferResult]:
        """See `PredictDialect`. The protocol cannot select outputs: unrequested ones are dropped from the response."""
        body = json.dumps({"inputs": {tensor.name: _values(tensor) for tensor in request.inputs}}).encode("utf-8")
        specs = {str(spec["name"]): str(spec["datatype"]) for spec in facts.get("outputs", [])}

        def parse(reply: HttpReply) -> InferResult:
            outputs = object_of(reply).get("outputs")
            if outputs is None:
                raise InvalidResponse("the server's response has no 'outputs': it does not speak TensorFlow Serving's REST protocol")
            if len(specs) == 1 and not (isinstance(outputs, dict) and specs.keys() == outputs.keys()):
                outputs = {next(iter(specs)): outputs}
            if not isinstance(outputs, dict):
                raise InvalidResponse(
                    f"the server's 'outputs' is a JSON {type(outputs).__name__}; expected an object with {', '.join(specs)}"
                )
            wanted = {name: value for name, value in outputs.items() if not request.outputs or name in request.outputs}
            arrays = {name: _array(name, specs.get(name, ""), value) for name, value in wanted.items()}
            result = InferResult(arrays, model_name=request.model, model_version=request.version, request_id="")
            result.info = {name: TensorInfo(specs.get(name, "FP64"), array.shape) for name, array in arrays.items()}
            return result

        route = f"{_route(request.model, request.version)}:predict"
        return Call(HttpRequest("POST", route, body, {"content-type": "application/json"}), parse, is_read=False)


def _route(model: str, version: str) -> str:
    route = f"/v1/models/{quote(model, safe='')}"
    return f"{route}/versions/{version}" if version else route


def _values(tensor: EncodedTensor) -> Any:
    array = decode_raw(tensor.name, tensor.datatype, tensor.shape, tensor.raw)
    if tensor.datatype == "BF16":
        array = bf16_to_float32(array)
    if tensor.datatype == BYTES:
        encoded = np.empty(array.shape, dtype=np.object_)
        encoded.ravel()[:] = [{"b64": base64.b64encode(element).decode("ascii")} for element in array.ravel()]
        array = encoded
    return array.tolist()


def _array(name: str, datatype: str, value: Any) -> Array:
    """An output converted to the type in the metadata."""
    try:
        if datatype == BYTES:
            return _strings(value)
        if datatype == "BF16":
            return float32_to_bf16(np.asarray(value, dtype=np.float32))
        return np.asarray(value, dtype=NUMPY_TYPES.get(datatype))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidResponse(f"output '{name}' does not hold {datatype} values: {error}") from error


def _strings(value: Any) -> Array:
    """Converts nested lists of text and `{"b64": ...}` to an object array of bytes."""
    texts = np.asarray(value, dtype=np.object_)
    array = np.empty(texts.shape, dtype=np.object_)
    array.ravel()[:] = [
        base64.b64decode(element["b64"], validate=True) if isinstance(element, dict) and "b64" in element else str(element).encode("utf-8")
        for element in texts.ravel()
    ]
    return array
