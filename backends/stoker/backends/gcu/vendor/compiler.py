"""Compiles an ONNX file with the vendor's own compiler, as the vendor's samples do."""

from pathlib import Path
from typing import Any, Final

from stoker.backends.gcu.vendor.failure import called

#: Names of the vendor's build flags, by precision.
_BUILD_FLAGS: Final = {"fp32": "KDEFAULT", "fp16": "KFP16", "mixed": "KFP16_MIX"}


def compile_onnx(library: Any, model: Path, executable: Path, *, precision: str, card: int = 0) -> None:
    """Writes the engine of `model`, whose shapes are static.

    Args:
        library: The vendor's module.
        model: An ONNX file.
        executable: The file to write.
        precision: `fp32`, `fp16` or `mixed`.
        card: Number of the card to compile for.

    Raises:
        VendorCallFailed: the compiler rejects the model, or the file cannot be written.
    """
    handle = called(library.set_device, card, [0])
    try:
        parser = called(library.create_parser, library.ONNX_MODEL)
        network = called(parser.read, str(model))
        optimizer = called(library.create_optimizer)
        called(optimizer.set_build_flag, getattr(library, _BUILD_FLAGS[precision]))
        engine = called(optimizer.build, network)
        called(engine.save_executable, str(executable))
    finally:
        called(library.release_device, handle)
