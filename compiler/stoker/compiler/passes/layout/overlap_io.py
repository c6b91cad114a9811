"""`overlap_io`: sets tiles apart for host IO."""

import logging

import onnx_ir as ir

from stoker.compiler.errors import OptionError
from stoker.compiler.marks import NUM_IO_TILES
from stoker.compiler.passes.pass_ import Pass
from stoker.compiler.passes.registry import register

log = logging.getLogger(__name__)

#: Usual choices are 32 to 192; this is the middle of them in powers of two.
DEFAULT_IO_TILES = 64


@register("overlap_io")
class OverlapIo(Pass):
    """Marks the model so that loading, computing and storing of consecutive batches overlap on `num_io_tiles` tiles set apart for IO.

    The graph stays as it is. What changes is the schedule: the target reads the mark from the model's metadata, takes the tiles from those
    that compute, and counts host IO beside compute instead of before and after it.

    Args:
        num_io_tiles: How many. About the bytes of all inputs and outputs over the memory of a tile, rounded up to a power of two.
    """

    def __init__(self, num_io_tiles: int = DEFAULT_IO_TILES) -> None:
        if num_io_tiles < 1:
            raise OptionError(f"num_io_tiles must be at least 1 for IO to overlap, not {num_io_tiles}")
        self._num_io_tiles = num_io_tiles

    def run(self, model: ir.Model) -> bool:
        before = model.metadata_props.get(NUM_IO_TILES)
        model.metadata_props[NUM_IO_TILES] = str(self._num_io_tiles)
        log.info("host IO overlaps with compute on %d tiles", self._num_io_tiles)
        return before != str(self._num_io_tiles)
