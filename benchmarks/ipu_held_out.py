"""Published rows outside PopRT's report, split into a development and a test set.

Sources: the benchmark scripts and read-me files of PopRT's repository (`poprt`), with the options that stand in them; ByteMLPerf's reports
for a C600 and the configuration of each model there (`bytemlperf`).

The split was made before the cost model was fitted again, and holds whole networks back: Conformer, BERT-large, Swin-L, CLIP's text encoder
and one row at least of every network that has several. Development rows may be fitted and looked at. Test rows are evaluated once.

Packed rows are of group MEMORY: a card ran these configurations, so they must fit, but their figures are not those of a busy device.
PopRT's scripts send 1000 sequences, at most two calls of the main program. ByteMLPerf's clients send int(3.5 x batch) sequences at a time,
which is less than two micro-batches of packed rows, and the number of sequences in a row is not published. VideoBERT is left out: neither
its size nor its inputs are published.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from benchmarks import ipu_other_networks as networks
from benchmarks.ipu_networks import BERT_BASE, Precision, bert, resnet50
from benchmarks.ipu_published import REAL_DATA, Group, PublishedRow
from benchmarks.transformer_blocks import Activation, Writing
from stoker.compiler.options import CompilerOptions

_FP16, _FP8 = Precision.FP16, Precision.FP8
_DEVELOPMENT, _TEST, _MEMORY = Group.DEVELOPMENT, Group.TEST, Group.MEMORY

#: PopRT's conversion of BERT and ViT: one product for queries, keys and values, their factor in the weights.
_TUNED = Writing(is_attention_fused=True, is_scaled_ahead=True)
_BERT_OPTIONS = CompilerOptions(
    batches_per_step=64, available_memory_proportion=0.4, use_128bit_conv_unit_load=True, enable_fast_reduce=True, group_host_sync=True
)
_VIT_OPTIONS = CompilerOptions(batches_per_step=128, available_memory_proportion=1.0, stream_buffering_depth=2, num_io_tiles=32)
_CLIP_OPTIONS = CompilerOptions(
    batches_per_step=128, available_memory_proportion=0.2, enable_non_stable_softmax=True, stream_buffering_depth=2
)
_CLIP_TEXT_OPTIONS = CompilerOptions(
    num_io_tiles=32,
    batches_per_step=128,
    use_128bit_conv_unit_load=True,
    stream_buffering_depth=2,
    enable_fast_reduce=True,
    group_host_sync=True,
    available_memory_proportion=0.8,
)
_CONFORMER_OPTIONS = CompilerOptions(num_io_tiles=32, batches_per_step=128, stream_buffering_depth=2)
_WIDE_OPTIONS = CompilerOptions(batches_per_step=1024, stream_buffering_depth=2, use_128bit_conv_unit_load=True, enable_fast_reduce=True)
_SWIN_LARGE_OPTIONS = CompilerOptions(
    batches_per_step=128,
    use_128bit_conv_unit_load=True,
    stream_buffering_depth=2,
    enable_fast_reduce=True,
    available_memory_proportion=0.2,
)
_PACKED_OPTIONS = CompilerOptions(available_memory_proportion=0.4)
_CONFORMER_NOTE = "the size of the network is not published: the medium one of the Conformer paper is assumed"
_PACKED_NOTE = "packed: the device was not busy, and the sequences in a row are not published"


def held_out_rows() -> Iterator[PublishedRow]:
    """All rows outside the fit, network by network."""
    yield from _bert_rows()
    yield from _image_rows()
    yield from _other_rows()
    yield from _packed_rows()


def _row(
    network: str,
    source: str,
    batch: int,
    rows_per_s: float | None,
    group: Group,
    options: CompilerOptions,
    build: Callable[[], ir.Model],
    *,
    precision: Precision = _FP16,
    is_latency: bool = False,
    note: str = "",
) -> PublishedRow:
    return PublishedRow(
        network=network,
        variant=source,
        precision=precision,
        batch=batch,
        rows_per_s=rows_per_s,
        group=group,
        options=options,
        build=build,
        is_latency=is_latency,
        note=note,
    )


def _bert_rows() -> Iterator[PublishedRow]:
    large = replace(_BERT_OPTIONS, batches_per_step=256, available_memory_proportion=0.15)
    for batch, rate, group, note in (
        (16, 4817, _DEVELOPMENT, ""),
        (128, 5672, _TEST, "ran Gelu and normalisations in fp32: modelled in fp16"),
    ):
        build = partial(bert, batch, _FP16, size=BERT_BASE, writing=_TUNED, sequence=128)
        yield _row("bert-base s128", "poprt", batch, rate, group, _BERT_OPTIONS, build, note=note)
    build = partial(bert, 18, _FP16, size=networks.BERT_LARGE, writing=_TUNED, sequence=128)
    yield _row("bert-large s128", "poprt", 18, 1473, _TEST, large, build)


def _image_rows() -> Iterator[PublishedRow]:
    vit_32 = replace(_VIT_OPTIONS, use_128bit_conv_unit_load=True, enable_fast_reduce=True, enable_non_stable_softmax=True)
    yield _row("vit-b/16", "poprt", 8, 2600, _DEVELOPMENT, _VIT_OPTIONS, partial(networks.vit_b16, 8, _FP16, _TUNED))
    yield _row("vit-b/16", "poprt", 32, 3109, _TEST, vit_32, partial(networks.vit_b16, 32, _FP16, _TUNED))
    for batch, rate, group in ((32, 2814, _DEVELOPMENT), (56, 4077, _TEST)):
        build = partial(networks.clip_b32, batch, 100, _FP16)
        yield _row("clip vit-b/32", "poprt", batch, rate, group, _CLIP_OPTIONS, build, note="100 texts beside the images")
    tiny = partial(networks.swin, 24, _FP16, width=96, depths=(2, 2, 6, 2), heads=3, side=224, window=7)
    options = CompilerOptions(batches_per_step=128, available_memory_proportion=0.3, stream_buffering_depth=2, num_io_tiles=32)
    yield _row("swin-t", "poprt", 24, 6802, _DEVELOPMENT, options, tiny)
    for batch, rate, precision in ((2, 315, _FP16), (4, 480, _FP8)):
        large = partial(networks.swin, batch, precision, width=192, depths=(2, 2, 18, 2), heads=6, side=384, window=12)
        yield _row("swin-l 384", "bytemlperf", batch, rate, _TEST, _SWIN_LARGE_OPTIONS, large, precision=precision)
    for batch, rate, precision, group in (
        (4, 7062, _FP16, _TEST),
        (32, 13542, _FP16, _DEVELOPMENT),
        (4, 7966, Precision.FP8_STAR, _DEVELOPMENT),
        (32, 18851, Precision.FP8_STAR, _TEST),
    ):
        build = partial(resnet50, batch, precision)
        yield _row("resnet50", "bytemlperf", batch, rate, group, REAL_DATA, build, precision=precision)
    overlapped = CompilerOptions(num_io_tiles=32, batches_per_step=128, stream_buffering_depth=2)
    for batch, rate, group, options in ((80, 15541, _TEST, overlapped), (1, 3119, _DEVELOPMENT, CompilerOptions())):
        build = partial(resnet50, batch, _FP16, is_input_uint8=True)
        yield _row("resnet50 uint8", "poprt", batch, rate, group, options, build)


def _other_rows() -> Iterator[PublishedRow]:
    second = Writing(activation=Activation.RELU, is_biased=False)
    for batch, rate, group, is_product, is_scaled in (
        (1, 2783, _DEVELOPMENT, False, False),
        (64, 29799, _TEST, True, False),
        (356, 42643, _DEVELOPMENT, True, True),
    ):
        writing = replace(second, is_scaled_ahead=is_scaled)
        build = partial(networks.roformer_small, batch, _FP16, sequence=128, writing=writing, is_rotary_product=is_product, is_second=True)
        yield _row("roformer-v2 small s128", "poprt", batch, rate, group, CompilerOptions(stream_buffering_depth=2), build)
    build = partial(networks.roformer_small, 12, _FP16, sequence=1024, writing=_TUNED, is_rotary_product=True, is_second=False)
    options = CompilerOptions(use_128bit_conv_unit_load=True, enable_fast_reduce=True)
    note = "one client; the size of the network is assumed to be the small one, the only one that the peak rate allows"
    yield _row("roformer small s1024", "bytemlperf", 12, 2520, _DEVELOPMENT, options, build, is_latency=True, note=note)
    narrow = replace(_WIDE_OPTIONS, available_memory_proportion=1.0, num_io_tiles=128)
    wide = replace(_WIDE_OPTIONS, num_io_tiles=32)
    for batch, rate, group, source, chosen in (
        (8000, 21_955_000, _TEST, "poprt", narrow),
        (51200, 35_545_000, _TEST, "poprt", wide),
        (20000, 31_400_000, _DEVELOPMENT, "bytemlperf", wide),
    ):
        yield _row("wide & deep", source, batch, rate, group, chosen, partial(networks.wide_and_deep, batch, _FP16))
    for batch, rate in ((4, 2674), (40, 7305)):
        build = partial(networks.clip_text_encoder, batch, _FP16)
        yield _row("clip text encoder", "bytemlperf", batch, rate, _TEST, _CLIP_TEXT_OPTIONS, build)
    fast = replace(_CONFORMER_OPTIONS, use_128bit_conv_unit_load=True, enable_fast_reduce=True)
    for batch, rate, source, chosen in (
        (1, 1705, "poprt", _CONFORMER_OPTIONS),
        (32, 8290, "poprt", _CONFORMER_OPTIONS),
        (4, 4195, "bytemlperf", fast),
        (44, 9341, "bytemlperf", fast),
    ):
        build = partial(networks.conformer, batch, _FP16)
        yield _row("conformer", source, batch, rate, _TEST, chosen, build, note=_CONFORMER_NOTE)


def _packed_rows() -> Iterator[PublishedRow]:
    albert, deberta = partial(networks.albert_base, 40, _FP16, sequence=384), partial(networks.deberta_base, 10, _FP16, sequence=384)
    options = replace(_PACKED_OPTIONS, available_memory_proportion=0.5)
    yield _row("albert-base s384 packed", "bytemlperf", 40, None, _MEMORY, options, albert, note=_PACKED_NOTE)
    fast = replace(_PACKED_OPTIONS, use_128bit_conv_unit_load=True, enable_fast_reduce=True)
    yield _row("deberta-base s384 packed", "bytemlperf", 10, None, _MEMORY, fast, deberta, note=_PACKED_NOTE)
    for batch, precision in ((40, _FP16), (45, _FP8)):
        build = partial(bert, batch, precision, size=BERT_BASE, writing=Writing(), sequence=384)
        yield _row(
            "bert-base s384 packed", "bytemlperf", batch, None, _MEMORY, _PACKED_OPTIONS, build, precision=precision, note=_PACKED_NOTE
        )
    build = partial(bert, 16, _FP16, size=BERT_BASE, writing=_TUNED, sequence=128)
    yield _row("bert-base s128 packed", "poprt", 16, None, _MEMORY, _BERT_OPTIONS, build, note=_PACKED_NOTE)
    build = partial(bert, 4, _FP16, size=networks.BERT_LARGE, writing=_TUNED, sequence=384)
    large = replace(_BERT_OPTIONS, batches_per_step=100, available_memory_proportion=0.15)
    yield _row("bert-large s384 packed", "poprt", 4, None, _MEMORY, large, build, note=_PACKED_NOTE)
