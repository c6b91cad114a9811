"""GET /ui/api/models/{model}: what the console shows of one version, and what its form is made from."""

from collections.abc import Sequence
from typing import Any, Final

from stoker.backends.api.model import TensorSpec
from stoker.server.config.report import Finding
from stoker.server.engine.interface import Engine
from stoker.server.web.console.feed import device_names

#: Labels of one output in the document.
MOST_LABELS: Final = 20_000


def console_document(engine: Engine, name: str, version: int | None) -> dict[str, Any]:
    """The document of the version that a request for (`name`, `version`) would reach.

    Raises:
        As `Engine.describe`.
    """
    description = engine.describe(name, version)
    config, signature = description.config, description.config.signature
    labels = {spec.name: engine.labels(name, version, spec.name) for spec in signature.outputs}
    return {
        "name": config.name,
        "version": description.version,
        "ready_versions": description.ready_versions,
        "backend": config.backend,
        "platform": config.platform,
        "devices": device_names(config.instance_groups),
        "max_batch_size": signature.max_batch_size,
        "is_decoupled": signature.is_decoupled,
        "is_ensemble": config.ensemble is not None,
        "sequence": config.sequences is not None,
        "inputs": [_tensor(spec) for spec in signature.inputs],
        "outputs": [{**_tensor(spec), "labels": list(labels[spec.name][:MOST_LABELS])} for spec in signature.outputs],
        "findings": _findings(engine.findings(name, version)),
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    """A tensor without its batch dimension; -1 is any size."""
    return {"name": spec.name, "datatype": spec.datatype.value, "dims": list(spec.dims), "is_optional": spec.optional}


def _findings(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"field": each.field, "origin": each.kind.value, "text": each.text} for each in findings]
