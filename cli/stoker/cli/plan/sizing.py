"""Sizes one model for simulated devices: every precision and batch size, and what makes a combination fit that does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.cli.plan.conversions import Conversions
from stoker.cli.plan.figures import modelled
from stoker.cli.plan.model import Combination, Memory, Remedy
from stoker.cli.plan.texts import one_line
from stoker.compiler.errors import CompileError, ShapeError
from stoker.compiler.options import CompilerOptions
from stoker.compiler.sizing import Estimate, SizedDevice, SizedModel
from stoker.compiler.target import Target

#: Bound on the changes that are tried for one combination.
MOST_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way to compile: device, precision and batch size."""

    device: SizedDevice
    precision: str
    batch: int | None

    @property
    def prepared_as(self) -> tuple[object, ...]:
        """Everything but the batch size."""
        return self.device.label, self.precision


class Sizing:
    """Sizes the model for the devices of one target. Estimates are kept, so that a remedy costs nothing twice."""

    def __init__(self, target: Target, conversions: Conversions, precisions: Sequence[str]) -> None:
        """Keeps the arguments.

        Args:
            target: The devices' target.
            conversions: The source model.
            precisions: Those that a remedy may choose from.
        """
        self._target = target
        self._conversions = conversions
        self._precisions = precisions
        self._estimates: dict[object, Estimate | CompileError] = {}
        #: The model that was prepared last: for one device and precision.
        self._prepared: tuple[object, SizedModel] | None = None

    def combination(self, device: SizedDevice, siblings: Sequence[SizedDevice], precision: str, batch: int | None) -> Combination:
        """Returns the figures of one combination; if it does not fit, with a change that makes it fit.

        Args:
            device: The device.
            siblings: The same device in other numbers.
            precision: Of the compiled model.
            batch: Rows of a batch; None: those in the model.
        """
        setup = Setup(device=device, precision=precision, batch=batch)
        found = self._estimated(setup)
        if isinstance(found, CompileError):
            return _without_figures(self._target, setup, one_line(found))
        fits = found.memory.fits
        return Combination(
            target=self._target.name,
            device=device.name,
            unit=device.unit,
            count=device.count,
            precision=precision,
            batch=found.rows,
            fits=fits,
            latency=modelled(found.latency_s, found.time_factors),
            period=modelled(found.period_s, found.time_factors),
            throughput=modelled(found.period_s, found.time_factors).rate(found.rows),
            memory=_memory(found),
            error_source=_error_source(found),
            problem="" if fits else _too_large(found),
            remedy=None if fits else self._remedy(setup, siblings),
            memory_levers=found.memory_levers,
            note=device.note,
        )

    def _estimated(self, setup: Setup) -> Estimate | CompileError:
        key = (*setup.prepared_as, setup.batch)
        if key not in self._estimates:
            try:
                self._estimates[key] = self._estimate(setup)
            except CompileError as error:
                self._prepared = None
                self._estimates[key] = error
        return self._estimates[key]

    def _estimate(self, setup: Setup) -> Estimate:
        chosen: dict[str, Any] = {**self._target.sizing_options(setup.device, setup.precision)}
        options = CompilerOptions(**chosen)
        self._target.check_options(options, [setup.precision])
        if self._prepared is None or self._prepared[0] != setup.prepared_as:
            self._prepared = None  # frees its memory first
            self._prepared = setup.prepared_as, self._target.sized_model(self._conversions.of(self._target, setup.precision), options)
        try:
            return self._prepared[1].estimate(setup.batch)
        except ShapeError:
            self._prepared = None
            if setup.batch in (None, self._conversions.base_batch):
                raise
            # The batch size is in a constant that the conversion for another size does not distinguish.
            return self._target.sized_model(self._conversions.of(self._target, setup.precision, setup.batch), options).estimate()

    def _remedy(self, setup: Setup, siblings: Sequence[SizedDevice]) -> Remedy | None:
        for tries, (change, changed) in enumerate(self._changes(setup, siblings)):
            if tries >= MOST_TRIES:
                break
            found = self._estimated(changed)
            if isinstance(found, Estimate) and found.memory.fits:
                period = modelled(found.period_s, found.time_factors)
                return Remedy(
                    change=change,
                    precision=changed.precision,
                    batch=found.rows,
                    count=changed.device.count,
                    latency=modelled(found.latency_s, found.time_factors),
                    throughput=period.rate(found.rows),
                    memory_levers=found.memory_levers,
                )
        return None

    def _changes(self, setup: Setup, siblings: Sequence[SizedDevice]) -> Iterator[tuple[str, Setup]]:
        """Yields changes, the smallest first: a smaller batch, a narrower precision, more devices."""
        batch = (setup.batch or 1) // 2
        while batch >= 1 and self._conversions.base_batch is not None:
            yield f"batch {batch}", Setup(device=setup.device, precision=setup.precision, batch=batch)
            batch //= 2
        for precision in self._narrower(setup):
            yield f"precision {precision}", Setup(device=setup.device, precision=precision, batch=setup.batch)
        for device in sorted(siblings, key=lambda each: each.count):
            if device.count > setup.device.count:
                more = f"{device.count} {device.unit}s"
                yield more, Setup(device=device, precision=setup.precision, batch=setup.batch)

    def _narrower(self, setup: Setup) -> list[str]:
        """Returns the requested precisions that are narrower than the setup's, the nearest first."""
        order = list(setup.device.precisions)  # fastest first
        if setup.precision not in order:
            return []
        return [each for each in reversed(order[: order.index(setup.precision)]) if each in self._precisions]


def _without_figures(target: Target, setup: Setup, problem: str) -> Combination:
    return Combination(
        target=target.name,
        device=setup.device.name,
        unit=setup.device.unit,
        count=setup.device.count,
        precision=setup.precision,
        batch=setup.batch or 0,
        fits=False,
        problem=problem,
        note=setup.device.note,
    )


def _memory(found: Estimate) -> Memory:
    memory = found.memory
    return Memory(
        place=memory.place, used_bytes=memory.used_bytes, capacity_bytes=memory.capacity_bytes, by_category=dict(memory.by_category)
    )


def _error_source(found: Estimate) -> str:
    error = found.error
    rows = f"{error.rows} row{'' if error.rows == 1 else 's'}, median {error.median:.0%}, worst {error.worst:.0%}"
    return f"{error.source} ({rows})" if error.rows else error.source


def _too_large(found: Estimate) -> str:
    memory = found.memory
    largest = max(memory.by_category.items(), key=lambda item: item[1], default=("nothing", 0))
    return (
        f"{memory.place}: {memory.used_bytes:,} bytes needed, {memory.capacity_bytes:,} available; most for {largest[0].replace('_', ' ')} "
        f"({largest[1]:,})"
    )
