"""Whether the simulated device's host can run a lowered graph: found out when it is compiled, not when it is loaded."""

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from stoker.backends.simulated.numerics import GraphRunner, NumericsError
from stoker.compiler.errors import CompileError
from stoker.compiler.passes.verify import light_proto


def check_prepared(model: ir.Model, name: str, custom_libraries: Sequence[str] = ()) -> None:
    """Prepares the lowered graph `model` as the runtime does, with its large weights as inputs.

    Args:
        model: Lowered.
        name: Of the model, for messages.
        custom_libraries: Libraries of ONNX Runtime custom operators that its nodes need.

    Raises:
        CompileError: ONNX Runtime has no kernel for a node, or finds the graph invalid.
    """
    with light_proto(model) as proto:
        text = proto.SerializeToString()
    try:
        GraphRunner(text, custom_op_libraries=[Path(each) for each in custom_libraries])
    except NumericsError as error:
        raise CompileError(f"model '{name}' compiles, but cannot be run on the simulated device: {error}") from error
