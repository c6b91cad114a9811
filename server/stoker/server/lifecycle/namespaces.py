"""Model namespaces (`--model-namespacing`): the models of each repository are named apart. Pure.

The namespace of a model is its repository, as the operator gave its path. A name that one model of the server has identifies it without a
namespace. See ADR 0089.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from stoker.server.core.ensemble import EnsembleStep
from stoker.server.core.model_key import model_key, repository_of
from stoker.server.lifecycle.listing import ModelListing


def ambiguity(name: str, keys: Sequence[str], roots: Sequence[Path]) -> str:
    """Why `name` does not identify one of the models `keys`; the first sentence is Triton's."""
    numbers = [number for key in keys if (number := repository_of(key)) is not None]
    where = " and ".join(f"{number + 1} ('{roots[number].name}')" for number in numbers)
    return (
        f"There are {len(keys)} identifiers of model '{name}' in global map, model namespace must be provided to resolve ambiguity. "
        f"The model repositories {where} have a model of this name"
    )


def with_namespace(listing: ModelListing, roots: Sequence[Path], holders: Callable[[str], Sequence[int]]) -> ModelListing:
    """`listing` in the namespace of its repository; the steps of an ensemble get the keys of their models.

    A step's model is that of the namespace that it names; else that of the ensemble's own namespace; else the only one of that name.

    Args:
        listing: A model as read.
        roots: The repositories, as the operator gave them.
        holders: The indexes of the repositories that have a model of a name.
    """
    listing = replace(listing, is_namespaced=True)
    config = listing.config
    if config is None or config.ensemble is None:
        return listing
    steps: list[EnsembleStep] = []
    for index, step in enumerate(config.ensemble.steps):
        number = listing.root_index
        if step.namespace:
            namespace = Path(step.namespace)
            if namespace not in roots:
                return _broken(
                    listing,
                    f"ensemble_scheduling.step[{index}].model_namespace: no model repository has this path, as given to --model-repository",
                )
            number = roots.index(namespace)
        else:
            found = holders(step.model)
            if number not in found and len(found) > 1:
                return _broken(listing, f"ensemble {listing.name} contains models that are not available or ambiguous: {step.model}")
            if number not in found and found:
                number = found[0]
        steps.append(replace(step, identifier=model_key(step.model, number)))
    keys = " ".join(step.key for step in steps)
    ensemble = replace(config.ensemble, steps=tuple(steps))
    # Another choice of a step's model is a change of the ensemble.
    return replace(listing, config=replace(config, ensemble=ensemble), fingerprint=f"{listing.fingerprint} {keys}")


def _broken(listing: ModelListing, error: str) -> ModelListing:
    return replace(listing, config=None, error=error, problems=(error,), fingerprint=f"{listing.fingerprint} {error}")
