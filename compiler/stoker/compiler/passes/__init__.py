"""Graph passes, their registry, and the manager that orders them by their dependencies."""

from stoker.compiler.passes.custom import ProtoPass, load_custom_passes
from stoker.compiler.passes.edit import traverse_graphs, traverse_nodes
from stoker.compiler.passes.manager import PassManager, PassProgress
from stoker.compiler.passes.registry import INTERNAL_OPSET, NodePass, Pass, get_all_pass_names, get_pass, register

__all__ = [
    "INTERNAL_OPSET",
    "NodePass",
    "Pass",
    "PassManager",
    "PassProgress",
    "ProtoPass",
    "get_all_pass_names",
    "get_pass",
    "load_custom_passes",
    "register",
    "traverse_graphs",
    "traverse_nodes",
]
