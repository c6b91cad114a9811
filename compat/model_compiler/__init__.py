"""Adlik's model compiler, run by Stoker: `model_compiler.compile_model(request)`, and `model_compiler.compiler` for the rest.

What is compiled is for simulated devices; `stoker.compiler.model_compiler` has the fields and what they do.
"""

from stoker_compat import warn_beside_real

from stoker.compiler.model_compiler import compile_model

warn_beside_real("model_compiler")

__all__ = ["compile_model"]
