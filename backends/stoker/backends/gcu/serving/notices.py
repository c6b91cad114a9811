"""What an operator should know of the models on simulated cards when the server starts."""

from collections.abc import Iterable, Iterator

from stoker.backends.gcu.serving.device_pool import DevicePool
from stoker.backends.gcu.serving.placement import Place
from stoker.backends.simulated.numerics import Numerics


def pool_notices(pool: DevicePool) -> Iterator[str]:
    """One line each."""
    places = pool.allocator.places
    if not places:
        return
    settings = pool.settings
    kind = settings.hardware.name
    clusters = f"{settings.clusters} cluster{'s' if settings.clusters > 1 else ''}"
    is_one = settings.cards == 1
    cards = f"a simulated {kind} card with {clusters}" if is_one else f"{settings.cards} simulated {kind} cards with {clusters} each"
    yield f"{_listed(places)} on {cards}"
    for card in range(settings.cards):
        shared = [cluster for cluster in range(settings.clusters) if pool.allocator.crowd(card, cluster) > 1]
        if shared:
            crowd = [place for place in places if place.card == card and set(place.clusters) & set(shared)]
            yield (
                f"{_listed(crowd)} share clusters {', '.join(map(str, shared))} of simulated card {card}, where their runs take turns; "
                "parameter 'clusters' in config.pbtxt, or more cards, part them"
            )
    if settings.numerics is Numerics.OFF:
        yield f"numerics are off for {_listed(places)}: all outputs are zeros"


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(place.lease.model for place in places))
