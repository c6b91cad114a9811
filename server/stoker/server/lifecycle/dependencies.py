"""The models that an ensemble needs: whether they serve, and in which order models are loaded. Pure.

An ensemble is loaded when the models of all its steps serve, and leaves service when one of them does. It is loaded again when the
signature of one of them changes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from stoker.backends.api.nearest import did_you_mean
from stoker.server.core.ensemble import Ensemble, StepModel
from stoker.server.core.model_key import name_of
from stoker.server.core.state import VersionState
from stoker.server.lifecycle.listing import ModelListing
from stoker.server.lifecycle.settings import shown
from stoker.server.lifecycle.table import Blocked, ModelRecord

#: Ensembles within ensembles.
MAX_NESTING: Final = 16
TOO_DEEP: Final = f"ensembles are nested deeper than {MAX_NESTING}"


def ensemble_of(record: ModelRecord) -> Ensemble | None:
    """The steps of the desired versions of a model, which share one configuration; None: it is no ensemble."""
    source = next((target.source for target in record.targets.values() if target.source is not None), None)
    return None if source is None else source.parsed.ensemble


def step_models(
    name: str, ensemble: Ensemble, records: Mapping[str, ModelRecord], known: Callable[[], Iterable[str]]
) -> tuple[StepModel, ...] | Blocked:
    """The versions that the steps of the ensemble `name` run now, in their order, or why it cannot serve.

    Args:
        name: The ensemble.
        ensemble: Its steps.
        records: All models by name.
        known: The names of all models of the repository, for a misspelled one.
    """
    if nesting(name, lambda each: _needed(records.get(each))) > MAX_NESTING:
        cycle = _cycle(name, records)
        return Blocked(TOO_DEEP if cycle is None else f"ensembles need each other: {' -> '.join(cycle)}")
    models: list[StepModel] = []
    waiting: Blocked | None = None
    for step_name, step in zip(ensemble.step_names, ensemble.steps, strict=True):
        record = records.get(step.key)
        servable = None if record is None else record.serving.get(step.version)
        if servable is not None:
            models.append(StepModel(servable.version, servable.signature))
            continue
        where = f"step '{step_name}' needs model {shown(step.model)}{'' if step.version is None else f' version {step.version}'}"
        if record is None:
            keys = set(known())
            hint = did_you_mean(step.model, {name_of(key) for key in keys} - {step.model})
            missing = "is not loaded" if step.key in keys else f"is not in the repository{hint}"
            return Blocked(f"{where}, which {missing}")
        if _is_loading(record, step.version):
            waiting = waiting or Blocked(f"{where}, which is loading", is_pending=True)
            continue
        return Blocked(f"{where}, which {_why(record, step.version)}")
    return waiting or tuple(models)


def ordered(names: Iterable[str], models: Mapping[str, ModelListing]) -> list[str]:
    """`names`, and the models that ensembles among them need, each behind those that it needs itself."""
    found: dict[str, None] = {}
    for name in names:
        if name in found:
            continue
        # The names above, each with those of its steps that are left; a loop, because ensembles may be nested deeply.
        above: dict[str, list[str]] = {name: [*steps_of(models.get(name))]}
        while above:
            last, left = next(reversed(above.items()))
            while left and (left[-1] in found or left[-1] in above or left[-1] not in models):
                left.pop()
            if left:
                step = left.pop()
                above[step] = [*steps_of(models[step])]
            else:
                del above[last]
                found[last] = None
    return list(found)


def nesting(name: str, steps: Callable[[str], Iterable[str]]) -> int:
    """How deeply ensembles are nested in `name`: 0 for a plain model, 1 for an ensemble of such, and so on; at most `MAX_NESTING` + 1.

    `steps` returns the models of an ensemble's steps; nothing for any other model.
    """
    level, depth = {name}, 0
    while depth <= MAX_NESTING and (level := {step for each in level for step in steps(each)}):
        depth += 1
    return depth


def steps_of(listing: ModelListing | None) -> tuple[str, ...]:
    """The keys of the models of an ensemble's steps; empty for any other model."""
    if listing is None or listing.config is None or listing.config.ensemble is None:
        return ()
    return tuple(dict.fromkeys(step.key for step in listing.config.ensemble.steps))


def _needed(record: ModelRecord | None) -> set[str]:
    """The models that a model's steps need."""
    ensemble = None if record is None else ensemble_of(record)
    return set() if ensemble is None else {step.key for step in ensemble.steps}


def _cycle(name: str, records: Mapping[str, ModelRecord]) -> list[str] | None:
    """The names from `name` back to it along the steps of ensembles, at most `MAX_NESTING` + 1 of them; None: there is no such way."""
    paths = [[name]]
    seen: set[str] = set()
    for path in paths:
        for step in sorted(_needed(records.get(path[-1]))):
            if step == name:
                return [*path, name]
            if step not in seen and len(path) <= MAX_NESTING:
                seen.add(step)
                paths.append([*path, step])
    return None


def _is_loading(record: ModelRecord, version: int | None) -> bool:
    states = [known.state for number, known in record.versions.items() if version in (None, number)]
    return VersionState.LOADING in states or VersionState.NEW in states


def _why(record: ModelRecord, version: int | None) -> str:
    if record.error:
        return f"cannot be loaded: {record.error}"
    if version is not None and version not in record.versions and record.targets:
        return "is not served by the model's version policy, or is not in the repository"
    reasons = [known.reason for number, known in sorted(record.versions.items()) if version in (None, number) and known.reason]
    return f"does not serve: {'; '.join(reasons)}" if reasons else "is not loaded"
