"""Adlik's model compiler interface: a request as dictionary, JSON or environment in, a served model and a zip file of it out.

`request` reads and checks what is asked for; `sources` finds out what the model comes from; `edges` leads it to the target by the shortest
chain of conversions that `compiling` declares; `repository` writes the result. `command` is `model-compiler`, and `compiler` has the
calls that raise. What is compiled is for simulated devices.
"""

from collections.abc import Mapping
from typing import Any

from stoker_compat import warn_beside_real

from stoker.compiler.errors import CompileError

warn_beside_real("model_compiler")

__all__ = ["compile_model"]


def compile_model(request: Mapping[str, Any]) -> dict[str, str]:
    """Compiles the model of `request`; its fields are those of `model_compiler.request.CompileRequest`.

    Returns:
        `{"status": "success", "path": <zip file>}`, or `{"status": "failure", "error_msg": <why>}`.
    """
    from model_compiler.compiling import compile_fields

    try:
        return {"status": "success", "path": str(compile_fields(request))}
    except CompileError as error:
        return {"status": "failure", "error_msg": str(error)}
    except Exception as error:  # noqa: BLE001 - callers look at the status only; a defect of ours is reported there too
        return {"status": "failure", "error_msg": f"internal error: {type(error).__name__}: {error}"}
