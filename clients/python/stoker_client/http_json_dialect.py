"""KServe v2 over HTTP with JSON tensors: the protocol without Triton's binary extension."""

import json

from stoker_client.datatypes import BYTES
from stoker_client.dialect import Call, Facts
from stoker_client.errors import InvalidRequest
from stoker_client.http_dialect import HttpDialect, HttpRequest, infer_path, read_infer_result
from stoker_client.inference import InferRequest, InferResult
from stoker_client.tensors import EncodedTensor, decode_raw

#: Element types without a JSON form.
_BINARY_ONLY = ("FP16", "BF16")


class JsonHttpDialect(HttpDialect):
    """`HttpDialect` with JSON tensors."""

    def infer(self, request: InferRequest) -> Call[InferResult]:
        """One inference.

        Raises:
            InvalidRequest: an input has no JSON form.
        """
        head: Facts = {"inputs": [_tensor(tensor) for tensor in request.inputs]}
        if request.parameters:
            head["parameters"] = dict(request.parameters)
        if request.request_id:
            head["id"] = request.request_id
        if request.outputs:
            head["outputs"] = [{"name": name} for name in request.outputs]
        body = json.dumps(head).encode("utf-8")
        path = infer_path(request.model, request.version)
        return Call(HttpRequest("POST", path, body, {"content-type": "application/json"}), read_infer_result, is_read=False)


def _tensor(tensor: EncodedTensor) -> Facts:
    if tensor.datatype in _BINARY_ONLY:
        raise InvalidRequest(f"input '{tensor.name}' is {tensor.datatype}, which travels as binary only")
    array = decode_raw(tensor.name, tensor.datatype, tensor.shape, tensor.raw)
    try:
        data = [element.decode("utf-8") for element in array.ravel()] if tensor.datatype == BYTES else array.ravel().tolist()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"input '{tensor.name}' holds bytes that are not UTF-8 text: they travel as binary only") from error
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "data": data}
