"""A model with implicit state: each output is the sum of the inputs of its sequence so far."""

from pathlib import Path

from onnx import TensorProto, helper

from tests.fakes.onnx_models import model, value

_CONFIG = """
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 8 }
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state {
    input_name: "was" output_name: "is" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
  }
}
"""


def write_adding(repository: Path) -> None:
    """Writes the model `adding` into a repository: input `x`, output `y`, both FP32 of one element."""
    version = repository / "adding" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(_adding())
    (version.parent / "config.pbtxt").write_text(_CONFIG)


def _adding() -> bytes:
    """`y` = `x` + the sum of the earlier requests of the sequence, which is kept in `is`."""
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("Sub", ["one", "START"], ["goes_on"]),
        helper.make_node("Mul", ["was", "goes_on"], ["kept"]),
        helper.make_node("Add", ["x", "kept"], ["y"]),
        helper.make_node("Identity", ["y"], ["is"]),
    ]
    tensors = [value(name, ("n", 1)) for name in ("x", "START", "was")]
    return model(nodes, tensors, [value("y", ("n", 1)), value("is", ("n", 1))], [one]).SerializeToString()
