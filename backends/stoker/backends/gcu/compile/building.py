"""From a model as people have it, in memory or in a file, straight to an executable: what TopsInference's parser and optimizer do."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from stoker.backends.gcu.compile.compiler import compile_source
from stoker.backends.gcu.compile.target import GcuTarget
from stoker.backends.gcu.program import GcuExecutable
from stoker.compiler.convert.converter import Converter
from stoker.compiler.convert.free_batch import with_free_batch
from stoker.compiler.convert.options import ConversionOptions
from stoker.compiler.convert.source import checked, read_onnx
from stoker.compiler.errors import OptionError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


def build(
    model: onnx.ModelProto | Path,
    *,
    name: str = "",
    batch_sizes: Sequence[int] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = (),
    build_flag: str = "fp32",
    resource_mode: str = "",
) -> GcuExecutable:
    """Converts and compiles a model.

    Args:
        model: An ONNX model, or the file that it is in.
        name: Of the executable; empty: the file's or the graph's.
        batch_sizes: To compile for, also where the model was exported for one; empty: the one that the model, or `input_shapes`, has.
        input_shapes: Whole shapes, batch included, of inputs with variable dimensions.
        outputs: Those wanted; empty for all.
        build_flag: `fp32`, `fp16`, `mixed`, or the vendor's names of these.
        resource_mode: See `resources`.

    Raises:
        CompileError: the file cannot be read, an option is wrong, or the model exceeds a limit of the device.
    """
    if len(set(batch_sizes)) != len(batch_sizes) or any(size < 1 for size in batch_sizes):
        raise OptionError(f"batch_sizes are {list(batch_sizes)}; expected different sizes of 1 or more")
    source = read_onnx(str(model)) if isinstance(model, Path) else model
    shapes = {key: tuple(sizes) for key, sizes in (input_shapes or {}).items()}
    plain = ConversionOptions(input_shape=shapes, skip_passes=GcuTarget.skip_passes)
    sized = [
        ConversionOptions(input_shape=shapes, skip_passes=GcuTarget.skip_passes, batch_size=size, batch_axis=0) for size in batch_sizes
    ]
    freed = with_free_batch(checked(source, "the model"), batch_sizes)
    converted = [Converter.of(each).convert_internal(freed) for each in sized or [plain]]
    given = {each.name for each in source.graph.initializer}
    described = SourceModel(
        model=converted[0],
        name=name or (model.stem if isinstance(model, Path) else source.graph.name) or "model",
        outputs=tuple(outputs),
        inputs=tuple(each.name for each in source.graph.input if each.name not in given),
        batches=converted if len(converted) > 1 else (),
    )
    return compile_source(described, CompilerOptions(build_flag=build_flag, resource_mode=resource_mode))
