"""Completes the configuration of an ensemble, and checks it against the models of its steps.

The rules are Triton's: each step's required inputs are mapped, element types are equal, shapes agree where both are known, and the batches
of the ensemble fit every step. An ensemble with a decoupled step is decoupled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from stoker.backends.api.model import VARIABLE, ModelSignature, TensorSpec
from stoker.server.config.complete import Completion, normalised, policy_text
from stoker.server.config.ensemble import step_path
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import Findings, Report, allowed_names, map_path
from stoker.server.config.tensors import specs
from stoker.server.core.ensemble import ENSEMBLE, Ensemble, StepModel
from stoker.server.core.model_config import ModelConfig
from stoker.server.pb import model_config_pb2 as pb

#: Parameters that the server itself reads for any model, but that mean nothing without instances.
_WITHOUT_EFFECT = frozenset({"execution", "nice"})


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the ensemble as one place of the configuration declares it.

    Attributes:
        spec: Its element type and dims.
        is_batched: Whether a batch dimension precedes the dims.
        is_optional: Whether it may be absent.
        origin: The place in words.
    """

    spec: TensorSpec
    is_batched: bool
    is_optional: bool
    origin: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The complete shape."""
        return (VARIABLE, *self.spec.dims) if self.is_batched else self.spec.dims

    @property
    def shown(self) -> str:
        """Element type and shape in words."""
        return f"{self.spec.datatype.config_name} {list(self.shape)}"


def complete_ensemble(parsed: ParsedConfig, models: Sequence[StepModel]) -> Completion:
    """Completes `parsed`, the configuration of an ensemble.

    Args:
        parsed: The configuration as written.
        models: The version that each step runs, in the order of the steps.

    Raises:
        ConfigError: the steps' models do not fit each other or the ensemble; names everything found.
    """
    assert parsed.ensemble is not None
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line, warnings=parsed.remarks)
    findings = Findings()
    message = pb.ModelConfig()
    message.CopyFrom(parsed.message)
    ensemble = parsed.ensemble
    findings.written("platform", f"{ENSEMBLE}, of {len(ensemble.steps)} step(s)")
    policy = policy_text(parsed.version_policy)
    (findings.written if parsed.is_written("version_policy") else findings.default)("version_policy", policy)
    for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True)):
        chosen = f"version {step.version}" if step.version is not None else f"the newest ready version, now {model.version}"
        findings.written(step_path(index), f"model '{step.model}', {chosen}")
    _check_batches(message, ensemble, models, report)
    signature = ModelSignature(
        specs(message.input), specs(message.output), message.max_batch_size, any(model.signature.is_decoupled for model in models)
    )
    _check_tensors(signature, ensemble, models, report)
    _check_decoupled(parsed, ensemble, models, signature, findings, report)
    if message.response_cache.enable:
        findings.written("response_cache", "on, if the server has a cache (--cache-config)")
    parameters = {key: value.string_value for key, value in sorted(message.parameters.items())}
    for key in sorted(_WITHOUT_EFFECT & parameters.keys()):
        report.warn(map_path("parameters", key), "has no effect: an ensemble has no instances; write it for the models of its steps")
    report.raise_if_any()
    for remark in report.warnings:
        findings.warning(remark.field, str(remark))
    if signature.is_decoupled:
        message.model_transaction_policy.decoupled = True
    else:
        message.ClearField("model_transaction_policy")
    for written in message.ensemble_scheduling.step:
        written.model_version = written.model_version or -1
    # Triton shows neither a backend nor an optimization for an ensemble.
    shown = normalised(message, "", ENSEMBLE, "", 0)
    shown.ClearField("optimization")
    config = ModelConfig(
        name=parsed.name,
        backend=ENSEMBLE,
        platform=ENSEMBLE,
        signature=signature,
        version_policy=parsed.version_policy,
        model_filename="",
        instance_groups=(),
        ensemble=ensemble,
        parameters=parameters,
        label_files={output.name: output.label_filename for output in message.output if output.label_filename},
        response_cache=message.response_cache.enable,
        metric_tags=dict(sorted(message.metric_tags.items())),
        wire=shown.SerializeToString(deterministic=True),
    )
    return Completion(config, findings.all())


def find_steps(parsed: ParsedConfig, served: Mapping[str, Mapping[int, ModelSignature] | None]) -> list[StepModel]:
    """The versions that the steps of an ensemble would run.

    Args:
        parsed: The configuration of the ensemble.
        served: For each model of the repository, the signatures of the versions that would serve; None: it depends on this ensemble.

    Raises:
        ConfigError: the model or version of a step would not serve; names all of them.
    """
    assert parsed.ensemble is not None
    report = Report(parsed.source, parsed.lines, first_line=parsed.first_line)
    models: list[StepModel] = []
    for index, step in enumerate(parsed.ensemble.steps):
        at = f"{step_path(index)}.model_name"
        if step.model not in served:
            report.error(at, f"no model '{step.model}' is in the repository{allowed_names(step.model, sorted(served))}")
            continue
        versions = served[step.model]
        if versions is None:
            report.error(at, f"model '{step.model}' needs this ensemble itself")
        elif not versions:
            report.error(at, f"model '{step.model}' cannot be loaded: see its own problems")
        elif step.version is not None and step.version not in versions:
            report.error(
                f"{step_path(index)}.model_version",
                f"model '{step.model}' does not serve version {step.version}; it serves {', '.join(map(str, sorted(versions)))}",
            )
        else:
            version = step.version or max(versions)
            models.append(StepModel(version, versions[version]))
    report.raise_if_any()
    return models


def _check_batches(message: pb.ModelConfig, ensemble: Ensemble, models: Sequence[StepModel], report: Report) -> None:
    """Triton's rule: every step takes the batches that the ensemble takes."""
    most = message.max_batch_size
    for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True)):
        of_step = model.signature.request_rows
        if most > of_step:
            takes = f"batches of up to {of_step}" if of_step else "no batches (its max_batch_size is 0)"
            report.error("max_batch_size", f"{most}, but step[{index}], model '{step.model}', takes {takes}: write at most {of_step}")


def _check_tensors(signature: ModelSignature, ensemble: Ensemble, models: Sequence[StepModel], report: Report) -> None:
    known = {
        spec.name: _Tensor(spec, signature.is_batched, spec.optional, f"input '{spec.name}' of the ensemble") for spec in signature.inputs
    }
    for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True)):
        for key, tensor in step.outputs.items():
            spec = model.signature.output(key)
            if spec is None:
                report.error(
                    map_path(f"{step_path(index)}.output_map", key),
                    f"model '{step.model}' has no output '{key}'{allowed_names(key, [each.name for each in model.signature.outputs])}",
                )
            else:
                origin = f"output '{key}' of step[{index}], model '{step.model}'"
                known[tensor] = _Tensor(spec, model.signature.is_batched, False, origin)
    for index, (step, model) in enumerate(zip(ensemble.steps, models, strict=True)):
        at = f"{step_path(index)}.input_map"
        for key, tensor in step.inputs.items():
            spec = model.signature.input(key)
            if spec is None:
                report.error(
                    map_path(at, key),
                    f"model '{step.model}' has no input '{key}'{allowed_names(key, [each.name for each in model.signature.inputs])}",
                )
            elif tensor in known:
                taken = _Tensor(spec, model.signature.is_batched, spec.optional, f"input '{key}' of model '{step.model}'")
                _check_fit(known[tensor], taken, map_path(at, key), report)
        missing = [spec.name for spec in model.signature.inputs if not spec.optional and spec.name not in step.inputs]
        if missing:
            report.error(at, f"lacks input(s) {', '.join(missing)} of model '{step.model}'")
    for index, spec in enumerate(signature.outputs):
        if spec.name in known:
            declared = _Tensor(spec, signature.is_batched, True, f"output '{spec.name}' of the ensemble")
            _check_fit(known[spec.name], declared, f"output[{index}]", report)


def _check_fit(given: _Tensor, taken: _Tensor, path: str, report: Report) -> None:
    """Reports that the tensor `given` cannot be used as `taken`. Sizes agree where both are known, as in Triton."""
    if given.spec.datatype is not taken.spec.datatype or not _agree(given.shape, taken.shape):
        report.error(path, f"{given.origin} is {given.shown}, but {taken.origin} is {taken.shown}")
    if given.is_optional and not taken.is_optional:
        report.error(path, f"{given.origin} is optional, but {taken.origin} is required")


def _agree(given: Sequence[int], taken: Sequence[int]) -> bool:
    return len(given) == len(taken) and all(VARIABLE in pair or pair[0] == pair[1] for pair in zip(given, taken, strict=True))


def _check_decoupled(
    parsed: ParsedConfig, ensemble: Ensemble, models: Sequence[StepModel], signature: ModelSignature, findings: Findings, report: Report
) -> None:
    """Reports decoupled steps whose responses would have to be joined; notes the ensemble's own policy, which follows from its steps."""
    at = "model_transaction_policy.decoupled"
    if not signature.is_decoupled:
        if parsed.message.model_transaction_policy.decoupled:
            report.warn(at, "has no effect: no step of the ensemble is decoupled")
        return
    decoupled = [index for index, model in enumerate(models) if model.signature.is_decoupled]
    before = _steps_before(ensemble)
    for first, second in combinations(decoupled, 2):
        if first not in before[second] and second not in before[first]:
            report.error(
                step_path(second),
                f"model '{ensemble.steps[second].model}' and step[{first}], model '{ensemble.steps[first].model}', are decoupled and "
                "neither takes an output of the other: which of their responses belong together is not defined",
            )
    if parsed.message.HasField("response_cache") and parsed.message.response_cache.enable:
        report.error("response_cache.enable", "contradicts a decoupled step: a request has any number of responses")
    names = ", ".join(f"'{ensemble.steps[index].model}'" for index in decoupled)
    findings.inferred(at, f"true: {names} is decoupled" if len(decoupled) == 1 else f"true: {names} are decoupled")


def _steps_before(ensemble: Ensemble) -> list[set[int]]:
    """For each step, all steps whose outputs it needs, directly or through others. REQUIRES: there is no cycle."""
    producers = {tensor: index for index, step in enumerate(ensemble.steps) for tensor in step.outputs.values()}
    direct = [{producers[tensor] for tensor in step.inputs.values() if tensor in producers} for step in ensemble.steps]
    before: dict[int, set[int]] = {}
    while len(before) < len(direct):
        for index, found in enumerate(direct):
            if index not in before and found <= before.keys():
                before[index] = found.union(*(before[each] for each in found))
    return [before[index] for index in range(len(direct))]
