"""`fuse_cast_into_onehot`: OneHot gives the type that a Cast after it would make."""

import onnx_ir as ir

from stoker.compiler.passes.edit import constant_of, only_use, producer_of
from stoker.compiler.passes.matching.each_node import rewrite_each
from stoker.compiler.passes.matching.editing import GraphEditor
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register


@register("fuse_cast_into_onehot")
class FuseCastIntoOnehot(Pass):
    """Casts OneHot's two constant values instead of its result. Exact: OneHot only copies them.

    The OneHot must be read by the Cast alone, and its values must be constant.
    """

    def run(self, model: ir.Model) -> bool:
        return rewrite_each(model, _fuse, "Cast")


def _fuse(editor: GraphEditor, cast: ir.Node) -> bool:
    onehot = producer_of(cast.inputs[0], "OneHot")
    if onehot is None or only_use(onehot.outputs[0]) is not cast:
        return False
    values, target = constant_of(onehot.inputs[2]), ir.DataType(cast.attributes["to"].as_int())
    if values is None or target is ir.DataType.STRING:
        return False
    fused = editor.insert(
        cast,
        "OneHot",
        [onehot.inputs[0], onehot.inputs[1], editor.constant(cast, values.astype(target.numpy()), f"{onehot.name or 'OneHot'}/values")],
        attributes={key: attribute.value for key, attribute in onehot.attributes.items()},
        name=onehot.name,
        like=cast.outputs[0],
        dtype=target,
        metadata=onehot.metadata_props,
    )
    editor.replace(cast.outputs[0], fused)
    editor.remove_dead(cast)
    return True
