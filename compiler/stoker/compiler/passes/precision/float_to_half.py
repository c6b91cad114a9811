"""`float_to_half`: precision fp16."""

import logging
from collections.abc import Collection

import onnx_ir as ir

from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.number_types import HalfConstants
from stoker.compiler.precision.overflow import overflow_prone
from stoker.compiler.precision.retype import Retyping, retype

log = logging.getLogger(__name__)


_KNOWN_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})


@register("float_to_half", before=("float_to_fp8",))
class FloatToHalf(Pass):
    """Makes FLOAT tensors FLOAT16, inputs and outputs of the model included, except where an operator cannot have it or is to stay FLOAT.

    Operators of other domains than ONNX's and ONNX Runtime's stay FLOAT. Constants beyond the range are clipped to +-65500 and epsilons
    below 1e-7 lifted to it, with one warning for each. What stays FLOAT has Casts around it. Outputs agree with the source model's to a
    relative error of about 1e-2, as far as no intermediate value overflows.
    """

    def __init__(
        self,
        *,
        fp16_skip_op_types: Collection[str] = (),
        skip_op_names: Collection[str] = (),
        enable_avoid_overflow_patterns: bool = False,
        keep_io_types: bool = False,
    ) -> None:
        """Takes what is to stay FLOAT.

        Args:
            fp16_skip_op_types: Operators.
            skip_op_names: Nodes.
            enable_avoid_overflow_patterns: Whether the patterns of `stoker.compiler.precision.overflow` are.
            keep_io_types: Whether the model's inputs and outputs are.
        """
        self.skip_op_types = frozenset(fp16_skip_op_types)
        self.skip_op_names = frozenset(skip_op_names)
        self.avoids_overflow = enable_avoid_overflow_patterns
        self.keeps_io_types = keep_io_types

    def run(self, model: ir.Model) -> bool:
        infer_shapes(model)
        there = {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
        for op_type in sorted(self.skip_op_types - there):
            log.warning("fp16_skip_op_types has '%s': the model has no such operator", op_type)
        prone = overflow_prone(model) if self.avoids_overflow else {}
        for node, start in prone.items():
            log.info("node '%s' (%s) stays FLOAT: pattern of %s may leave the range of FLOAT16", node.name, node.op_type, start)
        constants = HalfConstants()

        def keeps(node: ir.Node) -> bool:
            # The user's own operators: their library may well have kernels for FLOAT alone.
            if node.domain not in _KNOWN_DOMAINS:
                return True
            return node.op_type in self.skip_op_types or node.name in self.skip_op_names or node in prone

        changed = retype(
            model,
            Retyping(
                source=ir.DataType.FLOAT,
                target=ir.DataType.FLOAT16,
                convert=constants,
                keeps=keeps,
                changes_io=not self.keeps_io_types,
            ),
        )
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            if node.outputs and node.outputs[0].dtype == ir.DataType.FLOAT16:
                changed = constants.lift_epsilon(node) or changed
        constants.report()
        return changed
