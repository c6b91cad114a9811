"""`PlanRequest`: what `stoker plan` was asked for, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.backends.api.nearest import did_you_mean
from stoker.compiler.sizing import SizedDevice
from stoker.compiler.target import Target, find_target

#: Bounds on one plan.
MOST_BATCHES = 16
MOST_BATCH = 4096
MOST_PRECISIONS = 6
PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight", "mixed")
TARGETS = ("ipu", "gcu", "cpu")


class RequestError(ValueError):
    """An argument is invalid; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One plan to make.

    Attributes:
        model: The ONNX file.
        targets: The targets, in order.
        devices: For each target, the simulated devices; empty for the CPU.
        precisions, batches: To combine.
        shapes: Sizes of variable dimensions, by input.
        samples: File of samples; None for generated data.
    """

    model: Path
    targets: Mapping[str, Target]
    devices: Mapping[str, Sequence[SizedDevice]]
    precisions: Sequence[str]
    batches: Sequence[int]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def chosen_devices(names: Sequence[str]) -> tuple[dict[str, Target], dict[str, Sequence[SizedDevice]]]:
    """Returns the targets that `names` ask for, and the devices of each. A name is a target (all its devices) or a device.

    Raises:
        RequestError: a name is neither; the text lists the names.
    """
    targets = {name: find_target(name) for name in TARGETS}
    found: dict[str, list[SizedDevice]] = {}
    devices = {name: list(target.sized_devices()) for name, target in targets.items()}
    for wanted in names:
        if wanted.lower() in targets:
            found[wanted.lower()] = devices[wanted.lower()]
            continue
        named = [(target, each) for target, each_devices in devices.items() for each in each_devices if each.name.lower() == wanted.lower()]
        if not named:
            known = [*targets, *dict.fromkeys(each.name for each_devices in devices.values() for each in each_devices)]
            raise RequestError(f"--devices: there is no device '{wanted[:64]}'{did_you_mean(wanted, known)}; known: {', '.join(known)}")
        for target, each in named:
            present = found.setdefault(target, [])
            if each not in present:
                present.append(each)
    return {name: targets[name] for name in found}, found


def check_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """Returns the batch sizes in ascending order, each once.

    Raises:
        RequestError: there are too many, or one is too large.
    """
    sizes = tuple(sorted(set(batches)))
    if not 1 <= len(sizes) <= MOST_BATCHES:
        raise RequestError(f"--batch-sizes: expected 1 to {MOST_BATCHES} sizes, got {len(sizes)}")
    if not 1 <= sizes[0] <= sizes[-1] <= MOST_BATCH:
        raise RequestError(f"--batch-sizes: expected sizes from 1 to {MOST_BATCH}, got {sizes[-1] if sizes[0] >= 1 else sizes[0]}")
    return sizes


def check_precisions(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the precisions, each once.

    Raises:
        RequestError: a name is unknown, or there is none.
    """
    precisions = tuple(dict.fromkeys(names))
    for name in precisions:
        if name not in PRECISIONS:
            raise RequestError(
                f"--precisions: there is no precision '{name[:64]}'{did_you_mean(name, PRECISIONS)}; known: {', '.join(PRECISIONS)}"
            )
    if not precisions:
        raise RequestError("--precisions: name at least one")
    return precisions
