"""No name, number or type of Adlik's messages may ever change: its clients have them compiled in.

`adlik_descriptors.golden.txt` was checked against Adlik's published definitions when it was written.
"""

import runpy
from pathlib import Path

from google.protobuf import descriptor_pb2

from stoker.server.pb.adlik import model_pb2, operate_pb2, predict_pb2
from stoker.server.pb.tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2

HERE = Path(__file__).parent


def test_messages_equal_those_of_the_clients():
    file_lines = runpy.run_path(str(HERE.parent / "protos" / "list_descriptors.py"))["file_lines"]
    found: set[str] = set()
    for module in (model_pb2, predict_pb2, operate_pb2, tensor_pb2, tensor_shape_pb2, types_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found.update(file_lines(file))
    assert sorted(found) == (HERE / "adlik_descriptors.golden.txt").read_text().splitlines()
