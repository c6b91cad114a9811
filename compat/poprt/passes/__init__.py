"""`poprt.passes`: the passes, and the class that custom ones are made of."""

import os
from pathlib import Path

import onnx

from poprt.passes.base_pass import ImmutablePass, Pass, get_pass
from stoker.compiler.convert.shape_functions import register_shape_func
from stoker.compiler.convert.source import read_onnx
from stoker.compiler.passes import PassManager, get_all_pass_names, register


def layer_precision_compare(
    origin_model_path: str | os.PathLike[str],
    converted_model: onnx.ModelProto,
    data_preprocess: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] = "./",
) -> None:
    """Writes `precision_compare.log` into `output_dir`: how far each layer of the converted model is from the source's.

    Raises:
        CompileError: a model or the samples cannot be read.
    """
    get_pass(
        "layer_precision_compare",
        source=read_onnx(os.fspath(origin_model_path)),
        data_preprocess=None if data_preprocess is None else os.fspath(data_preprocess),
        precision_compare_log=Path(output_dir, "precision_compare.log"),
    )(converted_model)


__all__ = [
    "ImmutablePass",
    "Pass",
    "PassManager",
    "get_all_pass_names",
    "get_pass",
    "layer_precision_compare",
    "register",
    "register_shape_func",
]
