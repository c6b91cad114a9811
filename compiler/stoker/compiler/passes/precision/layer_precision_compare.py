"""`layer_precision_compare`: what `--precision_compare` logs."""

import logging
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.passes.infer import infer_shapes
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register
from stoker.compiler.precision.compare import LayerDistance, compare_layers, write_comparison
from stoker.compiler.precision.samples import Arrays, batches_of, inputs_of, load_samples

log = logging.getLogger(__name__)


@register("layer_precision_compare")
class LayerPrecisionCompare(Pass):
    """Logs the cosine distance of every Conv, MatMul and Gemm from the source model; changes nothing.

    Attributes:
        distances: Of each layer, in the source's order, once it has run.
    """

    def __init__(
        self,
        *,
        source: onnx.ModelProto | None = None,
        data_preprocess: str | Path | Arrays | None = None,
        precision_compare_log: str | Path | None = None,
    ) -> None:
        """Takes what to compare with.

        Args:
            source: The model before conversion, with the inputs of the one the pass runs on.
            data_preprocess: Samples by input name, or a pickle or .npz file of them; random ones where it is None.
            precision_compare_log: File that gets a line of each layer.

        Raises:
            OptionError: the samples cannot be read.
        """
        self.source = source
        self.file = data_preprocess if isinstance(data_preprocess, str | Path) else None
        self.data = load_samples(data_preprocess) if isinstance(data_preprocess, str | Path) else data_preprocess
        self.log_path = precision_compare_log
        self.distances: tuple[LayerDistance, ...] = ()

    def run(self, model: ir.Model) -> bool:
        if self.source is None:
            raise OptionError("pass 'layer_precision_compare' needs the source model to compare with; --precision_compare gives it")
        infer_shapes(model)
        batches: Sequence[Arrays] | None = None
        if self.data is not None:
            batches = batches_of(inputs_of(model.graph), self.data, file=self.file)
        self.distances = tuple(compare_layers(self.source, model, batches))
        for each in self.distances:
            log.info("%s", each)
        if self.log_path is not None:
            write_comparison(self.log_path, self.distances)
        return False
