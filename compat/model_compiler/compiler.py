"""`compile_model`, `compile_from_json` and `compile_from_env`: each returns the path of the zip file, and raises where it fails."""

import os
from collections.abc import Mapping
from typing import Any

from model_compiler.command import parse_json
from model_compiler.compiling import compile_environment, compile_fields

__all__ = ["compile_from_env", "compile_from_json", "compile_model"]


def compile_model(
    serving_type: str, model_name: str, max_batch_size: int, export_path: str, version: int | None = None, **fields: Any
) -> str:
    """Compiles one model; `fields` are those of the JSON form, `model_path` or `input_model` among them.

    Raises:
        stoker.compiler.errors.CompileError: a field is wrong, or the model cannot be compiled.
    """
    named = {"serving_type": serving_type, "model_name": model_name, "max_batch_size": max_batch_size, "export_path": export_path}
    return str(compile_fields({**fields, **named, "version": version}))


def compile_from_json(value: Mapping[str, Any] | str | bytes) -> str:
    """Compiles the request in `value`, a JSON object or its text.

    Raises:
        stoker.compiler.errors.CompileError: as `compile_model`.
    """
    if isinstance(value, bytes):
        value = value.decode()
    return str(compile_fields(parse_json(value, "the request") if isinstance(value, str) else value))


def compile_from_env(env: Mapping[str, str] | None = None) -> str:
    """Compiles the request in the environment variables.

    Raises:
        stoker.compiler.errors.CompileError: as `compile_model`.
    """
    return str(compile_environment(os.environ if env is None else env))
