"""A model's functions, put in the place of their calls."""

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from stoker.compiler.errors import CompileError
from stoker.compiler.passes.traverse import traverse_nodes

#: Of the functions that operators are replaced by; it is gone once they are inlined.
EXPANDED_DOMAIN = "stoker.expanded"


def inline_functions(model: ir.Model) -> None:
    """Replaces every call of a function of `model`, in place; afterwards it has none.

    Raises:
        CompileError: a function cannot be put in the place of its calls; the text says why.
    """
    if not model.functions:
        return
    for function in model.functions.values():
        # ONNX's checker accepts a function of another opset only if that defines the operators it uses in the same way.
        if "" in function.opset_imports and "" in model.opset_imports:
            function.opset_imports[""] = model.opset_imports[""]
    for node in traverse_nodes(model):
        called = model.functions.get(node.op_identifier())
        if called is not None and len(node.outputs) < len(called.outputs):
            node.resize_outputs(len(called.outputs))
    try:
        InlinePass()(model)
    except (ValueError, KeyError, ir.passes.PassError, ir.passes.InvariantError) as error:
        names = ", ".join(sorted({name for _, name, _ in model.functions}))
        reason = " ".join(str(error.__cause__ or error).split())
        raise CompileError(f"the model's functions ({names}) cannot be put in the place of their calls: {reason}") from error
    model.opset_imports.pop(EXPANDED_DOMAIN, None)
