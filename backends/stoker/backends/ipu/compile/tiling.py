"""Plans the distribution of a matrix product or convolution over tiles.

A contraction has five extents: groups (independent products), rows (batch and output positions), inner (input channels), outer (output
channels) and taps (positions of the kernel). A *partition* cuts groups, rows, inner and outer into pieces, one for each tile; a
*serialised* one computes the outputs in several sequential slices, which needs less memory at once. All cuts are tried, as Poplibs' planner
does, and the fastest one whose temporary data stays within the allowed share of a tile is chosen:

* Each tile receives its piece of the input, with the halo of the kernel, and of the weights, unless only one piece of rows needs the
weights: then they are not moved. * The matrix unit takes blocks of 16 outputs x (16 fp16, 32 fp8, 4 fp32) inputs, and streams all rows of
the tile through each. Few rows, or extents that are not a multiple of a block, leave it partly idle, so small batches are slow. * If inner
is cut, the partial sums are exchanged and added. * Two neighbouring tiles share a bus of the exchange. If the outputs are cut into an even
number of pieces, both get the same input at the same time, which halves its cycles.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from stoker.backends.ipu.compile.constants import (
    CYCLES_PER_POSITION,
    OUTPUT_CHANNELS,
    SHARED_BUS_TILES,
    VECTOR_BYTES,
    WEIGHT_LOAD_BYTES,
    CostConstants,
)
from stoker.backends.ipu.hardware import IpuHardware
from stoker.compiler.lowering.typed_graph import TensorFacts

_Array = NDArray[np.float64]
_SERIAL_SLICES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A matrix product or convolution, without names.

    Attributes:
        groups: Independent products of the same extents.
        rows: Rows of the output of one group: batch x output positions.
        inner, outer: Input and output channels of one group.
        taps: Positions of the kernel; 1 for a matrix product.
        kernel, strides: Sizes in a convolution's spatial dimensions; empty for a matrix product.
        macs_per_cycle: Multiply-accumulates of a tile per cycle, in the precision of the product.
        input_bytes, weight_bytes, partial_bytes, output_bytes: Bytes per element.
        is_weight_constant: Whether the weight is known at compile time, and so already on its tiles in the order of the matrix unit.
        is_rearranged: Whether each tile must rearrange its received input into the order of the matrix unit. The input of a convolution is
            already in blocks, because the previous convolution wrote them; a matrix product reads rows that normalisations and transposes
            wrote.
    """

    groups: int
    rows: int
    inner: int
    outer: int
    taps: int = 1
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    macs_per_cycle: int
    input_bytes: float
    weight_bytes: float
    partial_bytes: float
    output_bytes: float
    is_weight_constant: bool = True
    is_rearranged: bool = False

    @property
    def macs(self) -> int:
        return self.groups * self.rows * self.inner * self.outer * self.taps


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a tile that compiler options choose.

    Attributes:
        load_bytes: Bytes a cycle of loading a block of weights: 64-bit loads, or 128-bit ones with `use_128bit_conv_unit_load`.
        reduce_vectors: Vectors of partial sums that are added at once; two, from interleaved memory, with `enable_fast_reduce`.
    """

    load_bytes: int = WEIGHT_LOAD_BYTES
    reduce_vectors: int = 1


DEFAULT_RATES: Final = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The cut chosen for a contraction, with what one slice of it costs the busiest tile.

    Attributes:
        tiles: Number of tiles that take part.
        slices: Number of sequential slices of the output.
        receive_bytes: Bytes of input and weights received.
        receive_cycles: Cycles of receiving them.
        compute_cycles: Cycles of the matrix unit, and of rearranging its inputs.
        partials_bytes: Bytes of partial sums received; 0 if inner is not cut.
        reduce_cycles: Cycles of adding them.
        temporary_bytes: Temporary memory besides inputs and outputs.
    """

    tiles: int
    slices: int
    receive_bytes: int
    receive_cycles: int
    compute_cycles: int
    partials_bytes: int
    reduce_cycles: int
    temporary_bytes: int


@functools.lru_cache(maxsize=4096)
def partition(
    contraction: Contraction, hardware: IpuHardware, tiles: int, limit_bytes: int, constants: CostConstants, rates: Rates
) -> Partition:
    """Returns the fastest partition of `contraction` over `tiles` tiles whose temporary data stays within `limit_bytes` per tile.

    If there is none, returns the one with the least temporary data.
    """
    candidates = [_best(form, hardware, tiles, limit_bytes, constants, rates) for form in _forms(contraction)]
    fitting = [each for each in candidates if each[0].temporary_bytes <= limit_bytes]
    if not fitting:
        return min(candidates, key=lambda each: each[0].temporary_bytes)[0]
    return min(fitting, key=lambda each: each[1])[0]


def _forms(contraction: Contraction) -> list[Contraction]:
    """Yields the contraction itself; for narrow inputs also with the last or all kernel dimensions unrolled into input channels."""
    forms = [contraction]
    block = _inner_block(contraction)
    if contraction.taps > 1 and contraction.inner < block:
        last = contraction.kernel[-1]
        forms.append(
            replace(contraction, inner=contraction.inner * last, taps=contraction.taps // last, kernel=(*contraction.kernel[:-1], 1))
        )
        forms.append(replace(contraction, inner=contraction.inner * contraction.taps, taps=1, kernel=(1,) * len(contraction.kernel)))
    return forms


def _inner_block(contraction: Contraction) -> int:
    return contraction.macs_per_cycle * CYCLES_PER_POSITION // OUTPUT_CHANNELS


def _best(
    form: Contraction, hardware: IpuHardware, tiles: int, limit_bytes: int, constants: CostConstants, rates: Rates
) -> tuple[Partition, float]:
    """Returns the best cut of one form, and its cycles."""
    block = _inner_block(form)
    packed = max(1, min(form.groups, OUTPUT_CHANNELS // max(form.inner, form.outer, 1)))
    groups = math.ceil(form.groups / packed)
    group_cut, outer_cut, inner_cut, slices = (
        axis.ravel()
        for axis in np.meshgrid(
            _cuts(groups, tiles),
            _cuts(math.ceil(form.outer * packed / OUTPUT_CHANNELS), tiles),
            _cuts(math.ceil(form.inner * packed / block), tiles),
            np.array(_SERIAL_SLICES, dtype=np.float64),
            indexing="ij",
        )
    )
    others = group_cut * outer_cut * inner_cut
    keep = (others <= tiles) & (slices * outer_cut <= max(form.outer, 1))
    group_cut, outer_cut, inner_cut, slices, others = (axis[keep] for axis in (group_cut, outer_cut, inner_cut, slices, others))
    row_cut = np.minimum(float(form.rows), np.floor(tiles / others))

    group = np.ceil(groups / group_cut) * packed
    rows = np.ceil(form.rows / row_cut)
    outer = np.ceil(form.outer / (outer_cut * slices))
    inner = np.ceil(form.inner / inner_cut)

    blocks = np.ceil(group / packed) * np.ceil(outer * packed / OUTPUT_CHANNELS) * np.ceil(inner * packed / block) * form.taps
    load_cycles = OUTPUT_CHANNELS * block * form.weight_bytes / rates.load_bytes
    workers = hardware.worker_threads
    multiply = blocks * (np.ceil(rows / workers) * workers * CYCLES_PER_POSITION + load_cycles + constants.block_cycles)

    input_bytes = group * _input_positions(form, rows) * inner * form.input_bytes
    weights = group * form.taps * inner * outer * form.weight_bytes
    rearranged = (input_bytes if form.is_rearranged else 0.0) + (0.0 if form.is_weight_constant else weights)
    copy_cycles = rearranged / form.input_bytes * constants.copy_cycles
    compute = multiply + copy_cycles
    weight_bytes = weights if not form.is_weight_constant else np.where(row_cut > 1, weights, 0.0)
    is_cut = inner_cut > 1
    results = group * rows * outer
    partials = np.where(is_cut, results * form.partial_bytes * (inner_cut - 1) / inner_cut, 0.0)
    has_partials = is_cut | (form.partial_bytes > form.output_bytes)
    added = results * (form.partial_bytes + form.output_bytes / inner_cut) / VECTOR_BYTES
    reduce_cycles = np.where(has_partials, added * constants.vector_cycles / rates.reduce_vectors, 0.0)

    step = constants.step_cycles + constants.sync_cycles
    steps = 2 + np.where(is_cut, 1, 0) + np.where(has_partials, 1, 0)
    receive = input_bytes + weight_bytes
    is_shared = (outer_cut >= SHARED_BUS_TILES) & (outer_cut % SHARED_BUS_TILES == 0)
    receive_cycles = (input_bytes / np.where(is_shared, SHARED_BUS_TILES, 1) + weight_bytes) / hardware.exchange_bytes
    cycles = slices * (compute + reduce_cycles + receive_cycles + partials / hardware.exchange_bytes + steps * step)
    temporary = receive + rearranged + np.where(has_partials, results * form.partial_bytes, 0.0) + partials

    feasible = temporary <= limit_bytes
    if feasible.any():
        is_quick = feasible & (cycles <= cycles[feasible].min() * (1 + constants.plan_tolerance))
        index = int(np.argmin(np.where(is_quick, temporary, np.inf)))
    else:
        index = int(np.argmin(temporary))
    chosen = Partition(
        tiles=int(others[index] * row_cut[index]),
        slices=int(slices[index]),
        receive_bytes=int(receive[index]),
        receive_cycles=int(receive_cycles[index]),
        compute_cycles=int(compute[index]),
        partials_bytes=int(partials[index]),
        reduce_cycles=int(reduce_cycles[index]),
        temporary_bytes=int(temporary[index]),
    )
    return chosen, float(cycles[index])


def _input_positions(form: Contraction, rows: _Array) -> _Array:
    """Returns the input positions that a tile needs for `rows` output positions: the most nearly square patch, and its halo."""
    dims = len(form.kernel)
    if dims == 0:
        return rows
    side = rows ** (1 / dims)
    positions = np.ones_like(rows)
    for kernel, stride in zip(form.kernel, form.strides, strict=True):
        positions = positions * np.minimum(side * kernel, (side - 1) * stride + kernel)
    return positions


def _cuts(extent: int, tiles: int) -> _Array:
    """Returns the numbers of pieces to try for an extent of `extent` blocks: those that change the size of a piece, at most a few dozen."""
    pieces = {1}
    size = extent
    while size >= 1 and len(pieces) < 24:
        count = math.ceil(extent / size)
        if count > tiles:
            break
        pieces.add(count)
        size = min(size - 1, int(size / 1.25))
    if extent <= tiles:
        pieces.add(max(extent, 1))
    return np.array(sorted(pieces), dtype=np.float64)


#: Operators that the matrix unit runs.
CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "FusedMatMul"})


def contraction_of(
    node: ir.Node, inputs: list[TensorFacts | None], output: TensorFacts, hardware: IpuHardware, *, is_fp8: bool, partials_type: str
) -> Contraction:
    """Returns `node` as a contraction. REQUIRES: its operator is in `CONTRACTIONS`."""
    left, right = inputs[0], inputs[1]
    if left is None or right is None:
        raise AssertionError(f"{node.op_type} without two inputs passed the checker")
    element_bytes = 1.0 if is_fp8 else left.element_bytes
    is_half = left.bits <= 16
    macs = (hardware.fp8_flops if is_fp8 else hardware.fp16_flops if is_half else hardware.fp32_flops) // 2
    partial_bytes = 2.0 if is_half and partials_type != "float" else 4.0

    def made(
        *, groups: int, rows: int, inner: int, outer: int, taps: int = 1, kernel: tuple[int, ...] = (), strides: tuple[int, ...] = ()
    ) -> Contraction:
        return Contraction(
            groups=groups,
            rows=rows,
            inner=inner,
            outer=outer,
            taps=taps,
            kernel=kernel,
            strides=strides,
            macs_per_cycle=max(macs, 1),
            input_bytes=element_bytes,
            weight_bytes=1.0 if is_fp8 else right.element_bytes,
            partial_bytes=partial_bytes,
            output_bytes=output.element_bytes,
            is_weight_constant=right.is_constant,
            is_rearranged=not kernel or not (is_half or is_fp8),
        )

    if node.op_type in ("Conv", "ConvTranspose"):
        groups = node.attributes.get_int("group", 1)
        kernel = right.shape[2:]
        strides = tuple(node.attributes.get_ints("strides", ()) or (1,) * len(kernel))
        if node.op_type == "Conv":
            rows, outer = output.shape[0] * math.prod(output.shape[2:]), right.shape[0] // groups
        else:  # every input position touches each tap once, so the work is counted at the input
            rows, outer, strides = left.shape[0] * math.prod(left.shape[2:]), right.shape[1], (1,) * len(kernel)
        return made(
            groups=groups,
            rows=rows,
            inner=left.shape[1] // groups,
            outer=outer,
            taps=math.prod(kernel),
            kernel=tuple(kernel),
            strides=strides,
        )
    if node.op_type == "Gemm":
        inner = left.shape[0] if node.attributes.get_int("transA", 0) else left.shape[1]
        return made(groups=1, rows=output.shape[0], inner=inner, outer=output.shape[1])
    inner = left.shape[-1]
    outer = right.shape[-1] if len(right.shape) > 1 else 1
    if math.prod(right.shape[:-2]) <= 1:
        return made(groups=1, rows=output.elements // max(outer, 1), inner=inner, outer=outer)
    groups = math.prod(output.shape[:-2])
    return made(groups=groups, rows=left.shape[-2] if len(left.shape) > 1 else 1, inner=inner, outer=outer)
