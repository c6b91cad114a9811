"""`poprt.converter`: converts models, marks them for sharding, and converts several for fusion."""

from collections.abc import Mapping, Sequence

import onnx

from stoker.compiler.convert.converter import Converter as StokerConverter
from stoker.compiler.passes import get_pass


class Converter(StokerConverter):
    """Stoker's `Converter`. `quantize=True` without samples leaves FP8 to `poprt.quantizer.quantize`, which has them."""

    def __init__(self, **options: object) -> None:
        searched = options.get("quantize") and not options.get("data_preprocess")
        if searched and options.get("precision") in ("fp8", "fp8_weight"):
            options = {**{name: value for name, value in options.items() if name != "quantize"}, "precision": "fp16"}
        super().__init__(**options)


class Sharder:
    """Spreads a model over IPUs at named nodes: pass `manual_sharding`."""

    def __init__(self, sharding_info: Mapping[str, int] | None = None, pipelining_info: Mapping[str, int] | None = None) -> None:
        self._pass = get_pass("manual_sharding", sharding_info=sharding_info, pipelining_info=pipelining_info)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Returns the model with its marks; the given model is not changed.

        Raises:
            CompileError: a node does not exist, or is named twice.
        """
        return self._pass(model)


class MFConverter:
    """Converts several models, each by its own options, for `Compiler.compile` to fuse."""

    def __init__(self, options: Sequence[Mapping[str, object]]) -> None:
        self._converters = [Converter(**each) for each in options]

    def convert(self, models: Sequence[onnx.ModelProto]) -> list[onnx.ModelProto]:
        """The converted models, in order.

        Raises:
            ValueError: there are more or fewer models than options.
            CompileError: as `Converter.convert`.
        """
        return [converter.convert(model) for converter, model in zip(self._converters, models, strict=True)]


__all__ = ["Converter", "MFConverter", "Sharder"]
