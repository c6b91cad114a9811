"""Responses of TensorFlow Serving and Adlik from layouts equal those that protobuf makes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.api.model import ModelSignature, TensorSpec
from stoker.backends.api.tensor import DataType
from stoker.server.codecs.response_layouts import Layouts
from stoker.server.codecs.tensors import object_array, whole
from stoker.server.core.limits import Limits
from stoker.server.core.request import InferResponse
from stoker.server.pb.adlik import predict_pb2 as adlik_pb2
from stoker.server.pb.tensorflow_serving.apis import predict_pb2 as tfs_pb2
from stoker.server.protocols.adlik import predict as adlik
from stoker.server.protocols.adlik.request import ModelQuery as AdlikQuery
from stoker.server.protocols.adlik.request import make_response
from stoker.server.protocols.tfs import predict as tfs
from stoker.server.protocols.tfs.model_spec import ModelQuery

LIMITS = Limits()
SHAPES = st.lists(st.integers(0, 20), max_size=3).map(tuple)


@st.composite
def responses(draw: st.DrawFn) -> list[InferResponse]:
    """Responses of one structure and other elements."""
    specs = tuple(TensorSpec(f"OUT{at}é", draw(st.sampled_from(list(DataType))), (-1,)) for at in range(draw(st.integers(1, 3))))
    shapes = [draw(SHAPES) for _ in specs]
    signature, generator = ModelSignature((), specs, 8), np.random.default_rng(draw(st.integers(0, 99)))
    found = []
    for _ in range(2):
        outputs = {}
        for spec, shape in zip(specs, shapes, strict=True):
            bits = generator.integers(0, 2, shape)
            strings = object_array([b"x" * bit for bit in np.ravel(bits).tolist()], shape) if spec.datatype.is_bytes else None
            outputs[spec.name] = np.asarray(bits).astype(spec.datatype.numpy) if strings is None else strings
        found.append(InferResponse("m", 300, "", outputs, signature))
    return found


@given(responses())
def test_tfs_response_of_a_layout_parses_to_protobufs_message(given_responses):
    layouts = Layouts(lambda response, _: tfs.layout_of(response))
    for response in given_responses:
        message = layouts.encode(response)
        fixed = {DataType.FP32, DataType.FP64, DataType.BOOL}
        is_fixed = all(response.output_spec(name).datatype in fixed and array.size for name, array in response.outputs.items())
        assert (message is not None) == is_fixed
        if message is not None:
            expected = whole(tfs.print_response(response, ModelQuery("m")))
            assert tfs_pb2.PredictResponse.FromString(message) == tfs_pb2.PredictResponse.FromString(expected)


@given(responses(), st.lists(st.sampled_from([None, 300, 7]), min_size=2, max_size=2))
def test_adlik_response_of_a_layout_parses_to_protobufs_message(given_responses, versions):
    layouts = Layouts(adlik.layout_of)
    for response, version in zip(given_responses, versions, strict=True):
        message = layouts.encode(response, version)
        is_fixed = all(array.size and array.dtype.kind != "O" for array in response.outputs.values())
        assert (message is not None) == is_fixed
        if message is not None:
            expected = whole(adlik.print_response(make_response(AdlikQuery("m", version), response, {}, {}, LIMITS)))
            assert adlik_pb2.PredictResponse.FromString(message) == adlik_pb2.PredictResponse.FromString(expected)
