"""From a configuration as written and a model file to the configuration that is served, with the reason for every value."""

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.backends.api.backend import Backend
from stoker.backends.api.candidate import Candidate, parameter_path
from stoker.backends.api.model import ModelFacts, ModelSignature
from stoker.server.config.backend_choice import choose_backend
from stoker.server.config.decoupled import check_decoupled
from stoker.server.config.findings import Finding, FindingKind, Findings
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.ragged import batch_inputs, batch_outputs, check_ragged
from stoker.server.config.report import Report
from stoker.server.config.scheduling import complete_batching, complete_instances, dynamic_batching, instance_groups
from stoker.server.config.sequences import joined_requests, sequence_batching
from stoker.server.config.suggestions import allowed_names
from stoker.server.config.tensors import TensorCompleter, specs
from stoker.server.config.warmups import warmups
from stoker.server.config.wire import normalised
from stoker.server.core.model_config import AllVersions, Execution, LatestVersions, ModelConfig, NoVersions, SpecificVersions
from stoker.server.pb import model_config_pb2 as pb

__all__ = ["Completion", "Finding", "FindingKind", "choose_backend", "complete"]

#: Parameters the server itself reads, or keeps for readers of the configuration.
_SERVER_PARAMETERS = frozenset({"execution", "nice", "platform_version", "algorithm"})


@dataclass(frozen=True, slots=True)
class Completion:
    """A completed configuration, and where each of its values came from."""

    config: ModelConfig
    findings: tuple[Finding, ...]


def complete(parsed: ParsedConfig, facts: ModelFacts, backend: Backend, model_filename: str) -> Completion:
    """Completes `parsed` by what the model file declares.

    Args:
        parsed: The configuration as written.
        facts: What `backend` read from the version's file.
        backend: The backend chosen.
        model_filename: The file chosen, relative to the version folder; empty where the backend needs none.

    Raises:
        ConfigError: the configuration and the file contradict each other, together leave something open, or are not what the backend
            can serve; names everything found.
    """
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line, warnings=parsed.remarks)
    findings = Findings()
    message = pb.ModelConfig()
    message.CopyFrom(parsed.message)
    _note_choices(parsed, backend, model_filename, findings)
    tensors = TensorCompleter(parsed, message, facts, findings, report, backend.default_max_batch_size)
    tensors.complete()
    is_decoupled = message.model_transaction_policy.decoupled
    check_decoupled(message, backend, report)
    check_ragged(message, backend, report)
    signature = None
    if not report.has_problems:
        signature = ModelSignature(
            specs(message.input),
            specs(message.output),
            message.max_batch_size,
            is_decoupled,
            batch_inputs(message),
            batch_outputs(message),
        )
    is_inferred = not tensors.is_skipped and facts.inputs is not None and facts.outputs is not None
    complete_batching(parsed, message, is_inferred=is_inferred, findings=findings, report=report)
    complete_instances(message, backend, findings, report)
    parameters = {key: value.string_value for key, value in sorted(message.parameters.items())}
    graph_level = message.optimization.graph.level if message.optimization.HasField("graph") else None
    _check_parameters(parameters, backend, findings, report)
    sequences = sequence_batching(message, report)
    if sequences is not None:
        findings.written("sequence_batching", sequences.summary)
    whole = signature if signature is None or sequences is None else sequences.extend(signature)
    candidate = Candidate(facts=facts, signature=whole, parameters=parameters, graph_level=graph_level)
    for violation in backend.check(candidate):
        report.error(violation.field, violation.message)
    samples = warmups(message, signature, report) if signature is not None else ()
    report.raise_if_any()
    assert signature is not None
    for remark in report.warnings:
        findings.warning(remark.field, str(remark))
    batches = parsed.max_enqueued_batches or parsed.batching_defaults.max_enqueued_batches
    enqueued = batches * max(1, message.max_batch_size)
    config = ModelConfig(
        name=parsed.name,
        backend=backend.name,
        platform=_platform(backend),
        signature=signature,
        version_policy=parsed.version_policy,
        model_filename=model_filename,
        instance_groups=instance_groups(message),
        dynamic_batching=dynamic_batching(message) if sequences is None else joined_requests(message),
        sequences=sequences,
        max_enqueued_requests=enqueued,
        parameters=parameters,
        graph_level=graph_level,
        label_files={output.name: output.label_filename for output in message.output if output.label_filename},
        warmups=samples,
        execution=Execution(parameters.get("execution", Execution.AUTO.value)),
        nice=int(parameters.get("nice", "0")),
        metric_tags=dict(sorted(message.metric_tags.items())),
        wire=normalised(message, backend.name, _platform(backend), model_filename, enqueued).SerializeToString(deterministic=True),
    )
    return Completion(config, findings.all())


def _platform(backend: Backend) -> str:
    return backend.platforms[0] if backend.platforms else backend.name


def _note_choices(parsed: ParsedConfig, backend: Backend, model_filename: str, findings: Findings) -> None:
    if parsed.backend or parsed.platform:
        field = "backend" if parsed.backend else "platform"
        findings.written("backend", f"{backend.name}, from {field} '{getattr(parsed, field)}'")
    else:
        findings.inferred("backend", f"{backend.name}, from the file {model_filename}")
    if parsed.message.default_model_filename:
        findings.written("default_model_filename", model_filename)
    elif model_filename:
        findings.default("default_model_filename", f"{model_filename}, the backend's own")
    policy = parsed.version_policy
    match policy:
        case LatestVersions(count):
            text = f"latest {count}"
        case AllVersions():
            text = "all"
        case SpecificVersions(versions):
            text = f"specific {list(versions)}"
        case NoVersions():
            text = "none"
    (findings.written if parsed.is_written("version_policy") else findings.default)("version_policy", text)


def _check_parameters(parameters: Mapping[str, str], backend: Backend, findings: Findings, report: Report) -> None:
    known = sorted(backend.parameter_keys | {"execution", "nice"})
    for key, value in parameters.items():
        path = parameter_path(key)
        findings.written(path, value)
        if key not in known and key not in _SERVER_PARAMETERS:
            report.warn(path, f"backend '{backend.name}' does not read it{allowed_names(key, known)}")
