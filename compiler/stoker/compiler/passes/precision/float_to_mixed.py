"""`float_to_mixed`: the arithmetic that profits most in FLOAT16, all else in FLOAT."""

from collections.abc import Collection

import onnx_ir as ir

from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.number_types import HalfConstants
from stoker.compiler.precision.retype import Retyping, retype

#: Operators that run on the device's matrix units, four times as fast in FLOAT16.
MATRIX_OP_TYPES = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@register("float_to_mixed", against=("float_to_half",), before=("float_to_fp8",))
class FloatToMixed(Pass):
    """Makes Conv, ConvTranspose, Gemm and MatMul compute in FLOAT16, weights included, with Casts around them; all else stays FLOAT.

    Inputs and outputs of the model keep their types. Outputs agree with the source model's to a relative error of about 1e-2.
    """

    def __init__(self, *, op_types: Collection[str] = tuple(sorted(MATRIX_OP_TYPES)), skip_op_names: Collection[str] = ()) -> None:
        """Takes the operators that become FLOAT16, and nodes that do not all the same."""
        self.op_types = frozenset(op_types)
        self.skip_op_names = frozenset(skip_op_names)

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        constants = HalfConstants()

        def keeps(node: ir.Node) -> bool:
            is_control_flow = any(each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for each in node.attributes.values())
            return not is_control_flow and (node.op_type not in self.op_types or node.name in self.skip_op_names)

        retyping = Retyping(source=ir.DataType.FLOAT, target=ir.DataType.FLOAT16, convert=constants, keeps=keeps, changes_io=False)
        changed = retype(model, retyping)
        constants.report()
        return changed
