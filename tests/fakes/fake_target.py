"""A target that writes its arguments instead of compiling, and an installation with this target only."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.backends.api.tensor import DataType
from stoker.compiler.errors import CompileError
from stoker.compiler.options import CompilerOptions, effective
from stoker.compiler.target import Artefact, Measurement, SourceModel, Target


class FakeTarget(Target):
    """Writes a JSON file that names its sources and what they take; `refusal` makes it fail after it has written half of it."""

    name = "fake"
    aliases = ("pretend",)
    artefact_filename = "executable.fake"
    rejection: CompileError | None = None
    config: Mapping[str, object] = {"backend": "fake", "max_batch_size": 2, "parameters": {"pacing": "none"}}
    datatypes: Mapping[str, Sequence[DataType]] = {}
    measured = Measurement(batch_size=2, calls=10, latency_s=0.0015, throughput=1333.0, note="simulated")

    def __init__(self) -> None:
        self.sources: Sequence[SourceModel] = ()
        self.options: CompilerOptions | None = None

    def export(self, sources: Sequence[SourceModel], options: CompilerOptions, path: Path) -> Artefact:
        self.sources, self.options = sources, options
        facts: dict[str, Any] = {each.name: {"inputs": list(each.inputs), "nodes": len(each.model.graph.node)} for each in sources}
        if options.compilation_progress_logger is not None:
            options.compilation_progress_logger(1, 2)
        path.write_text(json.dumps(facts)[: 10 if self.rejection else None])
        if self.rejection is not None:
            raise self.rejection
        given = sorted(set(effective(options)) - {"compilation_progress_logger"})
        return Artefact(path=path, summary={"device": "fake", "options": ", ".join(given)}, config=self.config, datatypes=self.datatypes)

    def measure(self, path: Path, *, calls: int = 100, custom_libraries: Sequence[str] = ()) -> Measurement:
        json.loads(path.read_text())
        return self.measured


class FakeEntryPoint:
    def __init__(self, name: str, load: Callable[[], Any]) -> None:
        self.name = name
        self.load = load


def installed(target: Target) -> Callable[..., list[FakeEntryPoint]]:
    """Replaces `importlib.metadata.entry_points`; returns the same object each time, so that tests can inspect it."""

    def entry_points(*, group: str) -> list[FakeEntryPoint]:
        assert group == "stoker.targets"
        return [FakeEntryPoint(target.name, lambda: lambda: target)]

    return entry_points
