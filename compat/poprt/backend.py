"""`poprt.backend`: sessions by the name of what runs them."""

import os
from collections.abc import Mapping
from typing import Any

from stoker_compat.sources import ModelSource

from poprt.backends import Backend, OnnxRuntimeSession
from stoker.backends.ipu.runtime import RuntimeConfig


def get_session(
    model: ModelSource,
    num_devices: int = 1,
    backend: str = "poprt",
    *,
    options: Mapping[str, Any] | None = None,
    output_dir: str | os.PathLike[str] = "./",
    export_popef: bool = False,
    align_output_dtype: bool = False,
) -> Backend | OnnxRuntimeSession:
    """A session that is not loaded yet.

    Args:
        model: A path, bytes or `ModelProto`.
        num_devices: Devices with a copy of the model each.
        backend: `poprt` or `onnxruntime`.
        options: Compiler options by name.
        output_dir: Where `export_popef` writes `executable.popef`.
        export_popef: Whether it is written.
        align_output_dtype: Whether FP16 outputs come back as FP32.

    Raises:
        ValueError: there is no such backend.
    """
    if backend == "onnxruntime":
        return OnnxRuntimeSession(model)
    if backend != "poprt":
        raise ValueError(f"backend is '{backend}'; expected poprt or onnxruntime")
    return Backend(
        model,
        export_popef,
        options,
        RuntimeConfig(replication_factor=num_devices),
        align_output_dtype,
        output_dir,
    )
