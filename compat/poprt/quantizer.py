"""`poprt.quantizer`: formats and scales of FP8 searched with samples."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from stoker_compat.sources import ModelSource, as_model

from stoker.compiler.passes import get_pass


def quantize(
    onnx_model: onnx.ModelProto | None = None,
    input_model: ModelSource | None = None,
    output_dir: str | os.PathLike[str] = "./",
    data_preprocess: str | os.PathLike[str] | None = None,
    precision: str = "fp8",
    quantize_loss_type: str = "kld",
    num_of_layers_keep_fp16: int = 0,
    options: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """A converted FP16 model with its layers in FP8; writes `quantize.log` into `output_dir`.

    Args:
        onnx_model: Model in memory.
        input_model: Or where to read it.
        output_dir: For the log.
        data_preprocess: Pickle of {input name: samples}; random samples where it is None.
        precision: `fp8` or `fp8_weight`.
        quantize_loss_type: What is minimised.
        num_of_layers_keep_fp16: Noisiest layers left as they are.
        options: Further settings of pass `float_to_fp8`.

    Raises:
        ValueError: no model is given, or the precision is another.
        CompileError: the model or the samples cannot be read, or a setting is out of range.
    """
    source = onnx_model if onnx_model is not None else input_model
    if source is None:
        raise ValueError("quantize needs onnx_model or input_model")
    if precision not in ("fp8", "fp8_weight"):
        raise ValueError(f"precision is '{precision}'; expected fp8 or fp8_weight")
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    settings = {
        "calibration_with_data": True,
        "calibration_loss_type": quantize_loss_type,
        "data_preprocess": None if data_preprocess is None else os.fspath(data_preprocess),
        "num_of_layers_keep_fp16": num_of_layers_keep_fp16,
        "weight_only": precision == "fp8_weight",
        "quantize_log": Path(output_dir, "quantize.log"),
        **(options or {}),
    }
    return get_pass("float_to_fp8", **settings)(as_model(source))


class FP8Quantizer:
    """`quantize` with settings given once; they are its arguments."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def quantize(self, onnx_model: onnx.ModelProto) -> onnx.ModelProto:
        """The model in FP8; raises as `poprt.quantizer.quantize`."""
        return quantize(onnx_model, **self._settings)
