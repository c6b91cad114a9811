"""Writes the sample model `simple`: two INT32 vectors in, their sum and difference out. Needs the extra `examples`."""

import argparse
from pathlib import Path

import onnx
from onnx import TensorProto, helper

WIDTH = 16
MAX_BATCH_SIZE = 8
REPOSITORY = Path(__file__).resolve().parents[2] / "model_repos"

CONFIG = f"""\
# Sum and difference of two vectors. Made by examples/simple/build.py.
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: {MAX_BATCH_SIZE}
input [
  {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {WIDTH} ] }},
  {{ name: "INPUT1" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
]
output [
  {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {WIDTH} ] }},
  {{ name: "OUTPUT1" data_type: TYPE_INT32 dims: [ {WIDTH} ] }}
]
dynamic_batching {{ }}
"""


def build() -> onnx.ModelProto:
    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", WIDTH])

    graph = helper.make_graph(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"], name="sum"),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"], name="difference"),
        ],
        "simple",
        [tensor("INPUT0"), tensor("INPUT1")],
        [tensor("OUTPUT0"), tensor("OUTPUT1")],
    )
    # Written out, because onnx stamps its own newest versions, which ONNX Runtime may not read yet.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="stoker-examples")
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="model repository to write into (default: %(default)s)")
    folder: Path = parser.parse_args().repository / "simple"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    onnx.save(build(), folder / "1" / "model.onnx")
    print(f"wrote {folder}")


if __name__ == "__main__":
    main()
