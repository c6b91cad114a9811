"""Passes: one change to a graph each, in a registry, ordered by what they need of each other."""

from compiler.passes.pass_ import INTERNAL_OPSET, Pass
from compiler.passes.registry import get_all_pass_names, get_pass, register

__all__ = ["INTERNAL_OPSET", "Pass", "get_all_pass_names", "get_pass", "register"]
