"""Reads `ensemble_scheduling`, and checks it as far as that needs no other model: fields, tensors, producers, cycles.

The rules are Triton's. `ensemble_completion.py` has those that need the models of the steps.
"""

from collections.abc import Mapping, Sequence

from stoker.backends.api.nearest import did_you_mean
from stoker.server.config.parsed import ParsedConfig
from stoker.server.config.report import ConfigError, Problem, Report, allowed_names, map_path
from stoker.server.core.ensemble import ENSEMBLE, MAX_STEPS, Ensemble, EnsembleStep
from stoker.server.pb import model_config_pb2 as pb

_FIELD = "ensemble_scheduling"


def step_path(index: int) -> str:
    """Path of a step in texts."""
    return f"{_FIELD}.step[{index}]"


def is_ensemble(config: pb.ModelConfig) -> bool:
    """Whether `config` describes an ensemble, or means to."""
    return config.HasField(_FIELD) or ENSEMBLE in (config.platform, config.backend)


def read_ensemble(config: pb.ModelConfig) -> Ensemble | None:
    """The steps of a checked `config`; None: it is no ensemble. A version that is not written is -1, as in most of Triton's examples."""
    if not config.HasField(_FIELD):
        return None
    steps = tuple(
        EnsembleStep(
            model=step.model_name,
            version=step.model_version if step.model_version > 0 else None,
            inputs=dict(sorted(step.input_map.items())),
            outputs=dict(sorted(step.output_map.items())),
            namespace=step.model_namespace,
        )
        for step in config.ensemble_scheduling.step
    )
    return Ensemble(steps, config.ensemble_scheduling.max_inflight_requests)


def reject_namespaces(parsed: ParsedConfig) -> None:
    """Rejects the namespaces of steps, for a server without them.

    Raises:
        ConfigError: a step names one.
    """
    steps = () if parsed.ensemble is None else parsed.ensemble.steps
    paths = [f"{step_path(index)}.model_namespace" for index, step in enumerate(steps) if step.namespace]
    if paths:
        why = "without --model-namespacing=true a name identifies one model; leave it out, or start the server with the flag"
        raise ConfigError([Problem(parsed.source, parsed.lines.get(path), path, why) for path in paths])


def check_ensemble(config: pb.ModelConfig, report: Report) -> None:
    """Reports the errors of an ensemble's `config`, without the models of its steps."""
    if not config.HasField(_FIELD):
        report.error(_FIELD, f"must be written: {'platform' if config.platform else 'backend'} is '{ENSEMBLE}'")
        return
    _check_fields(config, report)
    steps = config.ensemble_scheduling.step
    if not steps:
        report.error(f"{_FIELD}.step", "must have at least one step")
    elif len(steps) > MAX_STEPS:
        report.error(f"{_FIELD}.step", f"{len(steps)} steps; at most {MAX_STEPS}")
        return
    for index, step in enumerate(steps):
        _check_step(config.name, step, step_path(index), report)
    producers = _producers(config, report)
    _check_uses(config, producers, report)
    _check_cycles(steps, producers, report)


def _check_fields(config: pb.ModelConfig, report: Report) -> None:
    if config.platform != ENSEMBLE:
        if config.platform:
            report.error("platform", f"'{config.platform}', but a model with {_FIELD} has platform '{ENSEMBLE}'")
        elif config.backend != ENSEMBLE:
            report.error("platform", f"must be '{ENSEMBLE}' for a model with {_FIELD}")
    if config.backend not in ("", ENSEMBLE):
        report.error("backend", f"'{config.backend}', but an ensemble has no backend: its steps' models have; leave it out")
    for name, why in (
        ("instance_group", "an ensemble has no instances: write instance groups for the models of its steps"),
        ("model_warmup", "an ensemble is not warmed up: write it for the models of its steps"),
        ("batch_input", "an ensemble runs no batches: write it for the models of its steps"),
        ("batch_output", "an ensemble runs no batches: write it for the models of its steps"),
    ):
        if len(getattr(config, name)):
            report.error(name, why)
    if config.HasField("optimization"):
        report.error("optimization", "an ensemble computes nothing itself: write it for the models of its steps")
    if config.default_model_filename:
        report.warn("default_model_filename", "has no effect: an ensemble has no model file")
    for side in ("input", "output"):
        tensors = getattr(config, side)
        if not tensors:
            report.error(side, "must be written: an ensemble has no model file to take it from")
        for index, tensor in enumerate(tensors):
            at = f"{side}[{index}]"
            if tensor.data_type == pb.TYPE_INVALID:
                report.error(f"{at}.data_type", f"tensor '{tensor.name}': must be written in an ensemble")
            if not tensor.dims:
                report.error(f"{at}.dims", f"tensor '{tensor.name}': must be written in an ensemble")
            if tensor.HasField("reshape"):
                report.error(f"{at}.reshape", "an ensemble does not reshape: the models of its steps do")
            if getattr(tensor, "allow_ragged_batch", False):
                report.warn(f"{at}.allow_ragged_batch", "has no effect in an ensemble: write it for the model of the step")


def _check_step(ensemble: str, step: pb.ModelEnsembling.Step, at: str, report: Report) -> None:
    if not step.model_name:
        report.error(f"{at}.model_name", "must be written")
    elif step.model_name == ensemble and not step.model_namespace:
        report.error(f"{at}.model_name", f"'{ensemble}' is the ensemble itself: an ensemble cannot be its own step")
    if step.model_version < -1:
        report.error(f"{at}.model_version", f"takes -1 (the newest ready version) or a version of at least 1, not {step.model_version}")
    for name in ("input_map", "output_map"):
        entries: Mapping[str, str] = getattr(step, name)
        if not entries:
            report.error(f"{at}.{name}", "must have at least one entry")
        for key, tensor in sorted(entries.items()):
            if not key or not tensor:
                report.error(map_path(f"{at}.{name}", key), "needs the model's tensor as key and the ensemble's tensor as value")


def _producers(config: pb.ModelConfig, report: Report) -> dict[str, int | None]:
    """The step that makes each tensor; None: the client sends it. Reports tensors that are made twice."""
    producers: dict[str, int | None] = dict.fromkeys((tensor.name for tensor in config.input), None)
    for index, step in enumerate(config.ensemble_scheduling.step):
        for key, tensor in sorted(step.output_map.items()):
            at = map_path(f"{step_path(index)}.output_map", key)
            if tensor not in producers:
                producers[tensor] = index
            elif (first := producers[tensor]) is None:
                report.error(at, f"tensor '{tensor}' is an input of the ensemble: no step can write it")
            else:
                report.error(at, f"tensor '{tensor}' is written by step[{first}] already: a tensor has one producer")
    return producers


def _check_uses(config: pb.ModelConfig, producers: Mapping[str, int | None], report: Report) -> None:
    used: set[str] = set()
    for index, step in enumerate(config.ensemble_scheduling.step):
        for key, tensor in sorted(step.input_map.items()):
            used.add(tensor)
            if tensor and tensor not in producers:
                report.error(
                    map_path(f"{step_path(index)}.input_map", key),
                    f"tensor '{tensor}' is neither an input of the ensemble nor the output of a step{allowed_names(tensor, producers)}",
                )
    for index, tensor_in in enumerate(config.input):
        if tensor_in.name and tensor_in.name not in used:
            hint = did_you_mean(tensor_in.name, sorted(used - producers.keys()), most=1)
            report.error(f"input[{index}].name", f"no step takes the tensor '{tensor_in.name}'{hint}")
    outputs = {tensor.name for tensor in config.output}
    made = [tensor for tensor, producer in producers.items() if producer is not None]
    for index, tensor_out in enumerate(config.output):
        name = tensor_out.name
        if name in producers and producers[name] is None:
            report.error(f"output[{index}].name", f"'{name}' is an input of the ensemble: a step must write an output")
        elif name and name not in producers:
            report.error(f"output[{index}].name", f"no step writes the tensor '{name}'{allowed_names(name, made)}")
    for tensor in made:
        producer = producers[tensor]
        if tensor and producer is not None and tensor not in used and tensor not in outputs:
            path = f"{step_path(producer)}.output_map"
            report.warn(path, f"the tensor '{tensor}' has no effect: no step takes it, and it is no output of the ensemble")


def _check_cycles(steps: Sequence[pb.ModelEnsembling.Step], producers: Mapping[str, int | None], report: Report) -> None:
    before = [{made for tensor in step.input_map.values() if (made := producers.get(tensor)) is not None} for step in steps]
    cycle = _cycle(before)
    if cycle is None:
        return
    names = " -> ".join(f"step[{index}] '{steps[index].model_name}'" for index in (*cycle, cycle[0]))
    report.error(step_path(cycle[0]), f"waits for its own output: {names}")


def _cycle(before: Sequence[set[int]]) -> list[int] | None:
    """The nodes of a cycle, in the order of its edges, in the graph of which `before` has the predecessors of each node; None: none."""
    left = {index: set(found) for index, found in enumerate(before)}
    while ready := [index for index, found in left.items() if not found]:
        for index in ready:
            del left[index]
        for found in left.values():
            found.difference_update(ready)
    if not left:
        return None
    # Each node that is left has a predecessor that is left: going back from one must meet a node twice.
    path = [min(left)]
    while (previous := min(left[path[-1]])) not in path:
        path.append(previous)
    cycle = path[path.index(previous) :][::-1]
    start = cycle.index(min(cycle))
    return cycle[start:] + cycle[:start]
