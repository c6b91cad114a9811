"""`ClusterAllocator`: assigns clusters of the cards to instances.

Instances of one version never share a cluster, because they run in parallel. By default they divide the clusters of their card evenly: one
instance gets all six, two get three each, four get one each (two clusters stay free for others). Different versions and models may share
clusters: each instance gets the clusters with the fewest instances, and runs on the same cluster take turns.
"""

import threading
from dataclasses import dataclass

from stoker.backends.api.errors import ModelLoadError
from stoker.backends.devices.pool import Lease


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The clusters of one instance.

    Attributes:
        lease: The lease of the instance's version.
        card: Number of the card.
        clusters: Numbers of the clusters, ascending.
    """

    lease: Lease
    card: int
    clusters: tuple[int, ...]


class ClusterAllocator:
    """Any thread may use it."""

    def __init__(self, cards: int, clusters: int) -> None:
        """Creates an allocator for `cards` cards with `clusters` usable clusters each."""
        self.cards = cards
        self.clusters = clusters
        self._lock = threading.Lock()
        self._placements: tuple[Placement, ...] = ()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Returns a snapshot of all current placements."""
        return self._placements

    def take(
        self, lease: Lease, *, card: int | None, siblings: int, wanted: int | None, unusable: frozenset[int] = frozenset()
    ) -> Placement:
        """Allocates clusters for one more instance. The caller returns them with `release`.

        Args:
            lease: The lease of the instance's version.
            card: Number of the card; None: among the cards with enough free clusters, the one with the fewest instances of `lease`, then of
                all.
            siblings: Number of instances of `lease` for this card, or for any card if `card` is None.
            wanted: Number of clusters; None: an even share among the siblings.
            unusable: Cards that have failed.

        Raises:
            ModelLoadError: no card has enough clusters without an instance of `lease`.
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
        """Releases a placement that `take` returned."""
        with self._lock:
            self._placements = tuple(each for each in self._placements if each is not placement)

    def crowd(self, card: int, cluster: int) -> int:
        """Returns the number of instances on a cluster."""
        return self._users(card, cluster)

    def _count(self, card: int, lease: Lease | None = None) -> int:
        return sum(each.card == card and lease in (None, each.lease) for each in self._placements)

    def _users(self, card: int, cluster: int, lease: Lease | None = None) -> int:
        return sum(each.card == card and cluster in each.clusters and lease in (None, each.lease) for each in self._placements)
