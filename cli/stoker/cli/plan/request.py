"""`PlanRequest`: what `stoker plan` was asked for, checked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from stoker.backends.api.nearest import did_you_mean
from stoker.backends.simulated.cost_constants import ConstantsError, device_of
from stoker.cli.plan.load import (
    LEAST_RATE_PER_S,
    MOST_RATE_PER_S,
    MOST_REQUESTS,
    MOST_ROWS,
    MOST_TIME_S,
    OpenArrivals,
    poisson,
    recorded,
)
from stoker.compiler.sizing import SizedDevice
from stoker.compiler.target import Target, find_target

#: Bounds on one plan.
MOST_BATCHES = 16
MOST_BATCH = 4096
LEAST_GOAL_MS = 1e-3
MOST_HOST_MS = 10_000.0
PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight", "mixed")
TARGETS = ("ipu", "gcu", "cpu")
_CONSTANTS_NOTE = "constants and error bar are those of --cost-constants, also if the file was measured on another device or precision"


class RequestError(ValueError):
    """An argument is invalid; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load to carry.

    Attributes:
        arrivals: The requests.
        kind: `poisson` or `recorded`.
        p99_goal_s: Goal for the 99th percentile of the latency, seconds.
        host_s, request_overhead_s: The host's share of a latency, seconds; see `ServiceTimes`.
    """

    arrivals: OpenArrivals
    kind: str
    p99_goal_s: float
    host_s: float = 0.0
    request_overhead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """One plan to make.

    Attributes:
        model: The ONNX file.
        targets: The targets, in order.
        devices: For each target, the simulated devices; empty for the CPU.
        precisions, batches: To combine.
        shapes: Sizes of variable dimensions, by input.
        samples: Samples to compare outputs on, by input; None for generated data.
        load: The load to carry; None if none was given.
    """

    model: Path
    targets: Mapping[str, Target]
    devices: Mapping[str, Sequence[SizedDevice]]
    precisions: Sequence[str]
    batches: Sequence[int]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    samples: Mapping[str, NDArray[Any]] | None = None
    load: Load | None = None


def load_of(
    rate_per_s: float | None,
    rows: int,
    arrivals: Path | None,
    p99_ms: float | None,
    *,
    host_ms: float = 0.0,
    request_overhead_ms: float = 0.0,
) -> Load | None:
    """Returns the load that the arguments describe; None if they describe none.

    Raises:
        RequestError: an argument is missing, contradicts another or is out of range; or the file cannot be read.
    """
    if rate_per_s is None and arrivals is None:
        if p99_ms is not None:
            raise RequestError("--p99-ms needs a load: give --rate or --arrivals")
        if host_ms or request_overhead_ms:
            raise RequestError("--host-ms and --request-overhead-ms need a load: give --rate or --arrivals")
        return None
    if rate_per_s is not None and arrivals is not None:
        raise RequestError("--rate and --arrivals exclude each other")
    if p99_ms is None:
        raise RequestError("a load needs a goal: give --p99-ms")
    if not LEAST_GOAL_MS <= p99_ms <= MOST_TIME_S * 1e3:
        raise RequestError(f"--p99-ms is {p99_ms:g}, expected {LEAST_GOAL_MS:g} to {MOST_TIME_S * 1e3:,.0f}")
    if not 1 <= rows <= MOST_ROWS:
        raise RequestError(f"--rows is {rows}, expected 1 to {MOST_ROWS:,}")
    for option, value_ms in (("--host-ms", host_ms), ("--request-overhead-ms", request_overhead_ms)):
        if not 0 <= value_ms <= MOST_HOST_MS:
            raise RequestError(f"{option} is {value_ms:g}, expected 0 to {MOST_HOST_MS:g}")
    goal_s, host_s, overhead_s = p99_ms / 1e3, host_ms / 1e3, request_overhead_ms / 1e3
    if rate_per_s is not None:
        if not LEAST_RATE_PER_S <= rate_per_s <= MOST_RATE_PER_S:
            raise RequestError(f"--rate is {rate_per_s:g}, expected {LEAST_RATE_PER_S:f} to {MOST_RATE_PER_S:,.0f} requests per second")
        return Load(arrivals=poisson(rate_per_s, rows), kind="poisson", p99_goal_s=goal_s, host_s=host_s, request_overhead_s=overhead_s)
    assert arrivals is not None
    times_s, counts = _recorded_times(arrivals, rows)
    try:
        return Load(arrivals=recorded(times_s, counts), kind="recorded", p99_goal_s=goal_s, host_s=host_s, request_overhead_s=overhead_s)
    except ValueError as error:
        raise RequestError(f"--arrivals {arrivals}: {error}") from error


def _recorded_times(path: Path, rows: int) -> tuple[list[float], list[int]]:
    """Reads lines of `seconds` or `seconds,rows`; empty lines and those that begin with # are skipped.

    Raises:
        RequestError: the file cannot be read, or a line is no arrival or is before the one ahead of it; the text names the line.
    """
    times_s, counts = list[float](), list[int]()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                text = line.strip()
                if not text or text.startswith("#"):
                    continue
                if len(times_s) >= MOST_REQUESTS:
                    raise RequestError(f"--arrivals {path}: more than {MOST_REQUESTS:,} arrivals")
                try:
                    time_s, count = _arrival(text, rows)
                    if times_s and time_s < times_s[-1]:
                        raise ValueError(f"is at {time_s:g} s, before the arrival ahead of it at {times_s[-1]:g} s")
                except ValueError as error:
                    raise RequestError(f"--arrivals {path}: line {number} {error}") from None
                times_s.append(time_s)
                counts.append(count)
    except UnicodeDecodeError as error:
        raise RequestError(f"--arrivals {path} is no UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise RequestError(f"--arrivals {path} cannot be read: {error.strerror or error}") from None
    return times_s, counts


def _arrival(text: str, rows: int) -> tuple[float, int]:
    """Returns the seconds and the rows of a line; `rows` where it has none.

    Raises:
        ValueError: the line is no arrival; the text follows the line's name.
    """
    time_text, comma, rows_text = text.partition(",")
    try:
        time_s, count = float(time_text), int(rows_text) if comma else rows
    except ValueError:
        time_s, count = math.nan, rows
    if not math.isfinite(time_s):
        raise ValueError(f"is {text[:40]!r}, expected SECONDS or SECONDS,ROWS")
    if not 1 <= count <= MOST_ROWS:
        raise ValueError(f"has {count} rows, expected 1 to {MOST_ROWS:,}")
    return time_s, count


def chosen_devices(names: Sequence[str]) -> tuple[dict[str, Target], dict[str, list[SizedDevice]]]:
    """Returns the targets that `names` ask for, and the devices of each. A name is a target (all its devices) or a device.

    Raises:
        RequestError: there is no name, or one is neither; the text lists the names.
    """
    targets = {name: find_target(name) for name in TARGETS}
    found: dict[str, list[SizedDevice]] = {}
    devices = {name: list(target.sized_devices()) for name, target in targets.items()}
    known = [*targets, *dict.fromkeys(each.name for each_devices in devices.values() for each in each_devices)]
    if not names:
        raise RequestError(f"--devices: name at least one; known: {', '.join(known)}")
    for wanted in names:
        if wanted.lower() in targets:
            found[wanted.lower()] = devices[wanted.lower()]
            continue
        named = [(target, each) for target, each_devices in devices.items() for each in each_devices if each.name.lower() == wanted.lower()]
        if not named:
            raise RequestError(f"--devices: there is no device '{wanted[:64]}'{did_you_mean(wanted, known)}; known: {', '.join(known)}")
        for target, each in named:
            present = found.setdefault(target, [])
            if each not in present:
                present.append(each)
    return {name: targets[name] for name in found}, found


def with_constants(devices: Mapping[str, Sequence[SizedDevice]], path: Path | None) -> Mapping[str, Sequence[SizedDevice]]:
    """Returns `devices` with a file of cost constants among the options of those that it is for.

    The notes of these devices are then about the file, not about the published error.

    Raises:
        RequestError: the file cannot be read, or `devices` has none of its target.
    """
    if path is None:
        return devices
    try:
        target = device_of(path)
    except ConstantsError as error:
        raise RequestError(f"--cost-constants: {error}") from error
    if not devices.get(target):
        raise RequestError(f"--cost-constants: {path} is for device '{target[:40]}', which --devices does not name")
    options = {"cost_constants": str(path)}
    return {**devices, target: [replace(each, options={**each.options, **options}, note=_CONSTANTS_NOTE) for each in devices[target]]}


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
