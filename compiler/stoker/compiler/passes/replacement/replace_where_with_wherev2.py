"""`replace_where_with_wherev2`: PopRT's own Where has no counterpart here."""

import logging

import onnx_ir as ir

from stoker.compiler.passes.edit import is_op
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.passes.traverse import traverse_nodes

log = logging.getLogger(__name__)


@register("replace_where_with_wherev2", against=("replace_where_with_mul_add",))
class ReplaceWhereWithWherev2(Pass):
    """No effect on a simulated device: upstream replaces Where by an operator WhereV2 of its own, which is not public; the simulated device
    has one Where.
    """

    def run(self, model: ir.Model) -> bool:
        count = sum(is_op(node, "Where") for node in traverse_nodes(model))
        log.info("replace_where_with_wherev2 has no effect on a simulated device: %d Where node(s) stay as they are", count)
        return False
