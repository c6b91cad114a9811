"""What passes left in a converted model's metadata: settings for the compiler, and opaque blobs for the runtime."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stoker.backends.ipu.compile.sub_graph import CompiledGraph
from stoker.backends.ipu.opaques import HOST_CONCAT, NOTES, PACKING, ConcatenatedInput, HostConcat, OpaqueError, dump_facts
from stoker.compiler import marks
from stoker.compiler.errors import CompileError, OptionError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.target import SourceModel


def with_noted_options(options: CompilerOptions, sources: Sequence[SourceModel]) -> CompilerOptions:
    """`options` with what `overlap_io` decided, where the caller asked for nothing.

    Raises:
        OptionError: a model notes another number of IO tiles than the options say, or no number.
    """
    for source in sources:
        text = next((each.value for each in source.model.metadata_props if each.key == marks.NUM_IO_TILES), "")
        if not text:
            continue
        if not text.isdecimal():
            raise OptionError(f"model '{source.name}': metadata '{marks.NUM_IO_TILES}' is {text!r}, expected a number")
        if options.num_io_tiles not in (0, int(text)):
            raise OptionError(f"model '{source.name}' was converted for {text} IO tiles, num_io_tiles is {options.num_io_tiles}")
        options = replace(options, num_io_tiles=int(text))
    return options


def note_blobs(graphs: Sequence[CompiledGraph], *, is_fused: bool) -> Mapping[str, bytes]:
    """The opaque blobs of what the passes noted.

    Raises:
        CompileError: a note does not say what its name promises.
    """
    blobs: dict[str, bytes] = {}
    concatenated: list[ConcatenatedInput] = []
    others: dict[str, object] = {}
    for graph in graphs:
        prefix = f"{graph.sub_graph.name}/" if is_fused else ""
        anchors = {tensor: anchor.name for tensor, anchor in graph.inputs}
        for key, text in graph.notes.items():
            if key == marks.HOST_CONCAT:
                concatenated += [
                    replace(
                        each,
                        tensor_name=anchors.get(each.tensor_name, each.tensor_name),
                        input_tensor_names=tuple(f"{prefix}{name}" for name in each.input_tensor_names),
                    )
                    for each in _host_concat(text)
                ]
            elif key == marks.PACKING:
                blobs[f"{prefix}{PACKING}"] = text.encode()
            else:
                others[f"{prefix}{key}"] = text
    if concatenated:
        blobs[HOST_CONCAT] = HostConcat(inputs=tuple(concatenated)).to_bytes()
    if others:
        blobs[NOTES] = dump_facts(others)
    return blobs


def _host_concat(text: str) -> tuple[ConcatenatedInput, ...]:
    try:
        return HostConcat.from_bytes(json.dumps({"inputs": json.loads(text)}).encode()).inputs
    except (ValueError, OpaqueError) as error:
        raise CompileError(f"metadata '{marks.HOST_CONCAT}' of the model: {error}") from None
