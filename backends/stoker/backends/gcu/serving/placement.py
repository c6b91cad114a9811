"""`ClusterAllocator`: which instance runs on which clusters of which card.

Instances of one version never share a cluster: they are there to run side by side. By default they share out the clusters of their card,
each the same whole number of them: one instance has all six, two have three each, four have one each (and two stay free for others).
Versions and models do share: each instance takes the clusters that the fewest others use, and runs on the same cluster take turns.
"""

import threading
from dataclasses import dataclass

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.simulated.serving.pool import Lease


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where one instance runs.

    Attributes:
        lease: Whose instance it is.
        card: Its number.
        clusters: Their numbers, ascending.
    """

    lease: Lease
    card: int
    clusters: tuple[int, ...]


class ClusterAllocator:
    """Any thread may use it."""

    def __init__(self, cards: int, clusters: int) -> None:
        """Of `cards`, on each of which `clusters` may be used."""
        self.cards = cards
        self.clusters = clusters
        self._lock = threading.Lock()
        self._placements: tuple[Placement, ...] = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """All that are taken: a snapshot."""
        return self._placements

    def take(
        self, lease: Lease, *, card: int | None, siblings: int, wanted: int | None, unusable: frozenset[int] = frozenset()
    ) -> Placement:
        """A place for one more instance; give it back with `release`.

        Args:
            lease: Whose.
            card: On which card; None: of those with enough free clusters, the one with the fewest instances of `lease`, then of all.
            siblings: Instances of `lease` that are for this card, or, where it is left open, for any.
            wanted: How many clusters; None: an even share among the siblings.
            unusable: Cards that work no more.

        Raises:
            ModelLoadError: no card has so many clusters without an instance of `lease`.
        """
        with self._lock:
            candidates = [number for number in range(self.cards) if number not in unusable and card in (None, number)]
            if not candidates:
                raise ModelLoadError(f"all {self.cards} cards are lost" if card is None else f"card {card} is lost")
            share = wanted or max(1, self.clusters // -(-siblings // (1 if card is not None else len(candidates))))
            free = {number: [each for each in range(self.clusters) if not self._users(number, each, lease)] for number in candidates}
            chosen = min(candidates, key=lambda each: (len(free[each]) < share, self._count(each, lease), self._count(each), each))
            if len(free[chosen]) < share:
                raise ModelLoadError(
                    f"an instance of {lease} needs {share} cluster{'s' if share > 1 else ''} of card {chosen}, which has {self.clusters}, "
                    f"{len(free[chosen])} of them without another instance of it: write a smaller 'count' or 'clusters', or use more cards"
                )
            emptiest = sorted(free[chosen], key=lambda cluster: (self._users(chosen, cluster), cluster))
            placement = Placement(lease, chosen, tuple(sorted(emptiest[:share])))
            self._placements = (*self._placements, placement)
            return placement

    def release(self, placement: Placement) -> None:
        """Gives back what `take` gave."""
        with self._lock:
            self._placements = tuple(each for each in self._placements if each is not placement)

    def crowd(self, card: int, cluster: int) -> int:
        """Instances on that cluster."""
        return self._users(card, cluster)

    def _count(self, card: int, lease: Lease | None = None) -> int:
        return sum(each.card == card and lease in (None, each.lease) for each in self._placements)

    def _users(self, card: int, cluster: int, lease: Lease | None = None) -> int:
        return sum(each.card == card and cluster in each.clusters and lease in (None, each.lease) for each in self._placements)
