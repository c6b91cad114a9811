"""`PopefFacts`: what a PopEF file and the name map beside it declare, read without a device.

`name_map.json`, beside the PopEF file: a JSON object from anchors of the executable to their names for clients.

    {"image:0": "image", "scores_output": "scores"}

Other anchors keep their names.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.backends.api.agreement import disagreements
from stoker.backends.api.candidate import Candidate, Violation, parameter_path
from stoker.backends.api.errors import ModelLoadError
from stoker.backends.api.files import ModelFiles
from stoker.backends.api.model import ModelFacts
from stoker.backends.ipu.popef.model import ModelBuilder
from stoker.backends.ipu.popef.program_codec import check_package_hash
from stoker.backends.ipu.popef.reader import Reader
from stoker.backends.ipu.popef.schema import PackageHashMismatch, PopefError
from stoker.backends.ipu.runtime import Executable, IpuRuntimeError
from stoker.backends.ipu.serving.options import ModelParameters
from stoker.backends.ipu.serving.served_graph import ServedGraph, ServedStream, served_graphs

NAME_MAP = "name_map.json"
MAX_BYTES = 1 << 20


def read_name_map(files: ModelFiles) -> Mapping[str, str]:
    """Returns the map from anchor to served name; empty if there is no file.

    Raises:
        ModelLoadError: the file is not such an object, gives an anchor two names, or gives two anchors the same name; the text lists all
            errors.
    """
    size = files.sizes_bytes.get(NAME_MAP)
    if size is None:
        return {}
    if size > MAX_BYTES:
        raise ModelLoadError(f"'{NAME_MAP}' has {size} bytes, more than the {MAX_BYTES} that are read")
    wrong: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        wrong.extend(f"anchor '{name}' is named twice" for name in dict.fromkeys(names) if names.count(name) > 1)
        return dict(pairs)

    try:
        root = json.loads(files.read(NAME_MAP).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"'{NAME_MAP}' is no JSON in UTF-8: {error}") from None
    if not isinstance(root, dict):
        raise ModelLoadError(f"'{NAME_MAP}' holds a {type(root).__name__}, expected an object from anchor to name")
    wrong += [
        f"anchor '{anchor}' is mapped to {json.dumps(name)[:60]}, expected a name"
        for anchor, name in root.items()
        if not isinstance(name, str) or not name
    ]
    if wrong:
        raise ModelLoadError(f"'{NAME_MAP}': {'; '.join(wrong)}")
    return {anchor: str(name) for anchor, name in root.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PopefFacts(ModelFacts):
    """The facts that `ModelFacts` does not hold.

    `inputs` and `outputs` are None if the executable is fused: config.pbtxt then selects the sub-graph and declares all of its tensors.

    Attributes:
        executable: The executable of the file.
        graphs: Its sub-graphs that can be served.
    """

    executable: Executable
    graphs: tuple[ServedGraph, ...]

    def graph(self, sub_graph: str) -> ServedGraph | None:
        """Returns the sub-graph that the parameter `sub_graph` selects by index or name; None if it selects none, or more than one."""
        if not sub_graph:
            return self.graphs[0] if len(self.graphs) == 1 else None
        found = [graph for graph in self.graphs if sub_graph in graph.names]
        if not found and sub_graph.isdecimal():
            found = [graph for graph in self.graphs if str(graph.index) == sub_graph]
        return found[0] if len(found) == 1 else None

    def violations(self, candidate: Candidate, parameters: ModelParameters) -> Iterator[Violation]:
        """Returns the reasons why the executable cannot be served with the configuration of `candidate`."""
        if parameters.check_package_hash:
            try:
                check_package_hash(self.executable.program.package_hash)
            except PackageHashMismatch as error:
                yield Violation("default_model_filename", error.reason)
        graph = self.graph(parameters.sub_graph)
        if graph is None:
            given = f"'{parameters.sub_graph[:40]}' chooses none or several" if parameters.sub_graph else "must be written: this is fused"
            yield Violation(parameter_path("sub_graph"), f"{given}; the executable's sub-graphs: {', '.join(map(str, self.graphs))}")
        elif candidate.signature is not None:
            yield from disagreements(candidate.signature, graph.input_tensors, graph.output_tensors)


def read_facts(files: ModelFiles, model_filename: str) -> PopefFacts:
    """Reads the declarations of the file `model_filename` and of the name map beside it.

    Raises:
        ModelLoadError: a file is missing, damaged or contradicts itself; the text names file, blob and offset.
    """
    path = files.path(model_filename)
    try:
        executable = _executable(path)
    except PopefError as error:
        location = ", ".join(part for part in (error.blob, "" if error.offset is None else f"offset {error.offset}") if part)
        raise ModelLoadError(
            f"'{model_filename}' is no readable PopEF file: {location + ': ' if location else ''}{error.reason}"
        ) from error
    except IpuRuntimeError as error:
        raise ModelLoadError(f"'{model_filename}': {error}") from error
    try:
        graphs = served_graphs(executable, read_name_map(files))
    except ModelLoadError as error:
        raise ModelLoadError(f"'{model_filename}': {error.message}") from error
    single = graphs[0] if len(graphs) == 1 else None
    return PopefFacts(
        inputs=single.input_tensors if single else None,
        outputs=single.output_tensors if single else None,
        notes=tuple(_notes(executable, graphs)),
        executable=executable,
        graphs=graphs,
    )


def _executable(path: Path) -> Executable:
    reader = Reader()
    reader.parse_file(path)
    for blob in reader.blobs():
        blob.verify()  # also contents that serving does not read: a damaged file must be replaced, not served
    return Executable(ModelBuilder(reader).create_model(), check_package_hash=False)


def _notes(executable: Executable, graphs: tuple[ServedGraph, ...]) -> Iterator[str]:
    program = executable.program
    ipus = executable.num_ipus
    yield (
        f"executable {executable.name}, for {ipus} {program.system} IPU{'s' if ipus > 1 else ''} (ipu{program.ipu_version}), "
        f"precision {program.attributes.get('precision') or 'not stated'}; runs on simulated IPUs"
    )
    if len(graphs) == 1:
        yield graphs[0].rows_note
        return
    for graph in graphs:
        yield f"sub-graph {graph}: inputs {_listed(graph.inputs)}; outputs {_listed(graph.outputs)}; {graph.rows_note}"


def _listed(streams: tuple[ServedStream, ...]) -> str:
    return ", ".join(f"'{each.name}' {each.tensor.datatype.config_name} {list(each.tensor.shape or ())}" for each in streams)
