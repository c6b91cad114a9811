"""`RateLimiter`: lets an instance run only while the resources that its configuration names are free. Pure: it has no clock and no I/O.

Triton's rules. A resource belongs to a device or is global. Its count is the largest that any loaded instance needs, or the one of
`--rate-limit-resource`. Of the instances that wait, the one with the smallest product of priority and executions is next, so that an
instance of priority 2 gets half the batches of one of priority 1.

Two rules go beyond Triton's. An instance that waits for a resource does not delay instances that need other ones. An instance that was idle
or is new does not catch up on the executions that it missed: it continues at the product of the instance that ran last.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from stoker.backends.api.errors import ModelLoadError
from stoker.server.core.model_config import InstanceGroup

#: Stands for the device of a global resource.
GLOBAL: Final = -1
#: Instances without a device use the resources of this one (Triton's rule for KIND_CPU and KIND_MODEL).
HOST_DEVICE: Final = 0

Place = tuple[int, str]
"""A device, or `GLOBAL`, and the name of a resource."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """Triton's `--rate-limit` and `--rate-limit-resource`.

    Attributes:
        is_on: Whether instances wait for resources.
        resources: Count by device (None: every device and global) and name; empty: counts follow from the instances.
    """

    is_on: bool = False
    resources: Mapping[tuple[int | None, str], int] = field(default_factory=dict)


class LimitedInstance:
    """One instance under the limiter. Confined to: the event loop.

    Attributes:
        needs: Count by place.
        weight: The priority, at least 1; a larger one gets fewer batches.
        position: Product of weight and executions, adjusted for idle times: the smallest runs next.
        wake: Called when the instance may run.
    """

    __slots__ = ("needs", "position", "turn", "wake", "weight")

    def __init__(self, needs: Mapping[Place, int], weight: int) -> None:
        self.needs = needs
        self.weight = max(1, weight)
        self.position = 0
        #: When it began to wait; decides among equal positions.
        self.turn = 0
        self.wake: Callable[[], None] = _ignore


class RateLimiter:
    """The resources of all instances of the server. Confined to: the event loop."""

    def __init__(self, resources: Mapping[tuple[int | None, str], int], call_soon: Callable[[Callable[[], None]], None]) -> None:
        """`resources` as in `RateLimitSettings`; `call_soon` calls a function in the loop's next turn."""
        self._explicit = resources
        self._call_soon = call_soon
        self._known: set[LimitedInstance] = set()
        self._limits: dict[Place, int] = {}
        self._used: dict[Place, int] = {}
        self._waiting: set[LimitedInstance] = set()
        #: The position of the instance that ran last.
        self._position = 0
        self._turns = 0
        self._offer_is_due = False

    def register(self, groups: Sequence[InstanceGroup], model: str) -> list[LimitedInstance]:
        """Adds the instances of `groups` of a model that is being loaded, in the order of their workers.

        Raises:
            ModelLoadError: a resource is both global and of a device, or its explicit count is less than an instance needs.
        """
        added = [
            LimitedInstance(_needs(group, device), group.limiter_priority)
            for group in groups
            for device in group.gpus or (HOST_DEVICE,)
            for _ in range(group.count)
        ]
        limits = self._limits_of(self._known.union(added), model)
        self._known.update(added)
        self._limits = limits
        return added

    def unregister(self, instances: Sequence[LimitedInstance]) -> None:
        """Removes the instances of a model that was unloaded. REQUIRES: none of them runs."""
        self._known.difference_update(instances)
        self._waiting.difference_update(instances)
        self._limits = self._limits_of(self._known, "")
        self._offer_soon()

    def limits(self) -> Mapping[Place, int]:
        """The count of each resource."""
        return self._limits

    def used(self, device: int, name: str) -> int:
        """The count of a resource that running instances hold."""
        return self._used.get((device, name), 0)

    def acquire(self, candidates: Sequence[LimitedInstance]) -> int | None:
        """Takes the resources of the first of `candidates` in Triton's order that may run, and returns its index.

        None: all of them wait now, and `wake` of one is called when it may run.
        """
        order = sorted(range(len(candidates)), key=lambda index: candidates[index].position)
        for index in order:
            instance = candidates[index]
            if instance not in self._waiting:
                self._begin_waiting(instance)
            if self._may_run(instance):
                for each in candidates:
                    self._waiting.discard(each)
                for place, count in instance.needs.items():
                    self._used[place] = self._used.get(place, 0) + count
                return index
        return None

    def ran(self, instance: LimitedInstance) -> None:
        """Counts an execution of `instance`, which has its resources."""
        self._position = max(self._position, instance.position)
        instance.position += instance.weight

    def release(self, instance: LimitedInstance) -> None:
        """Returns the resources of `instance`, whether it ran or not."""
        for place, count in instance.needs.items():
            self._used[place] -= count
        self._offer_soon()

    def withdraw(self, instances: Sequence[LimitedInstance]) -> None:
        """These instances wait no longer: their model has no requests left."""
        if not self._waiting.isdisjoint(instances):
            self._waiting.difference_update(instances)
            self._offer_soon()

    def _begin_waiting(self, instance: LimitedInstance) -> None:
        self._turns += 1
        instance.turn = self._turns
        instance.position = max(instance.position, self._position)
        self._waiting.add(instance)

    def _may_run(self, instance: LimitedInstance) -> bool:
        """Whether its resources are free, and no instance before it waits for one of them."""
        used, limits = self._used, self._limits
        for place, count in instance.needs.items():
            if used.get(place, 0) + count > limits.get(place, 0):
                return False
        key = (instance.position, instance.turn)
        for other in self._waiting:
            if (other.position, other.turn) < key and not other.needs.keys().isdisjoint(instance.needs):
                return False
        return True

    def _offer_soon(self) -> None:
        # In the next turn: a scheduler that ends a batch on the event loop must not run another model's inside its own call.
        if self._waiting and not self._offer_is_due:
            self._offer_is_due = True
            self._call_soon(self._offer)

    def _offer(self) -> None:
        """Wakes the instances that may run, in order. Their schedulers acquire the resources, or wait no longer."""
        self._offer_is_due = False
        for instance in sorted(self._waiting, key=lambda each: (each.position, each.turn)):
            if instance in self._waiting and self._may_run(instance):
                turn = instance.turn
                instance.wake()
                if instance.turn == turn:
                    # Its scheduler has no batch for it now. Otherwise it ran, or waits anew.
                    self._waiting.discard(instance)

    def _limits_of(self, instances: set[LimitedInstance], model: str) -> dict[Place, int]:
        most: dict[Place, int] = {}
        for instance in instances:
            for place, count in instance.needs.items():
                most[place] = max(most.get(place, 0), count)
        on_devices = {name for device, name in most if device != GLOBAL}
        for device, name in sorted(most):
            if device == GLOBAL and name in on_devices:
                text = f'Resource "{name}" is present as both global and device-specific resource in the model configuration'
                raise ModelLoadError(f"model '{model}': {text}")
        if not self._explicit:
            return most
        return {place: self._checked(place, needed, model) for place, needed in most.items()}

    def _checked(self, place: Place, needed: int, model: str) -> int:
        """The explicit count of a resource; 0 if there is none, as in Triton."""
        device, name = place
        found = max(
            (count for (where, each), count in self._explicit.items() if each == name and (device == GLOBAL or where in (None, device))),
            default=0,
        )
        if found < needed:
            raise ModelLoadError(
                f"model '{model}': Resource count for \"{name}\" is limited to {found} which will prevent scheduling of one or more model"
                f" instances, the minimum required count is {needed} (--rate-limit-resource={name}:{needed})"
            )
        return found


def _needs(group: InstanceGroup, device: int) -> Mapping[Place, int]:
    return {(GLOBAL if resource.is_global else device, resource.name): resource.count for resource in group.resources if resource.count}


class SchedulerLimits:
    """The rate limiter as the scheduler of one version uses it: by the numbers of its workers. Confined to: the event loop."""

    def __init__(self, limiter: RateLimiter, instances: Sequence[LimitedInstance]) -> None:
        """`instances` are those of the workers, by number."""
        self._limiter = limiter
        self._instances = tuple(instances)
        #: Batches of each worker that hold its resources.
        self._held = [0] * len(self._instances)

    def bind(self, wake: Callable[[], None]) -> None:
        """`wake` is called when an instance may run."""
        for instance in self._instances:
            instance.wake = wake

    def acquire(self, workers: Sequence[int]) -> int | None:
        """The worker of `workers`, which are free, that runs the next batch; its resources are taken. None: all wait."""
        if not workers:
            return None
        index = self._limiter.acquire([self._instances[worker] for worker in workers])
        if index is None:
            return None
        self._held[workers[index]] += 1
        return workers[index]

    def ran(self, worker: int) -> None:
        """Counts a batch that a worker gets."""
        self._limiter.ran(self._instances[worker])

    def release(self, worker: int) -> None:
        """Returns the resources that one batch of a worker holds, whether it ran or not."""
        self._held[worker] -= 1
        self._limiter.release(self._instances[worker])

    def withdraw(self) -> None:
        """No request waits any longer."""
        self._limiter.withdraw(self._instances)

    def close(self) -> None:
        """Removes the instances. Resources of batches whose end was never reported are returned."""
        for worker, count in enumerate(self._held):
            for _ in range(count):
                self.release(worker)
        self._limiter.unregister(self._instances)


def _ignore() -> None:
    """The default callback."""
