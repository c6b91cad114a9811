"""`--metrics-config`, given in pieces: which of Triton's optional metrics are shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from stoker.server.flags.declare import option
from stoker.server.flags.values import BadValue, FlagError, boolean
from stoker.server.observability.metrics_settings import MetricsSettings

_PANEL = "Network"
_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_QUANTILES = "summary_quantiles"
_MOST_QUANTILES = 32


@dataclass(frozen=True, kw_only=True)
class MetricsFlags:
    """What /metrics shows."""

    metrics_config: Annotated[
        list[str] | None,
        option("metrics-config", metavar="NAME=V", panel=_PANEL, text="Triton's optional metrics: summary_latencies=true and others."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: a piece has another form.
        """
        return {"metrics": metrics_config(self.metrics_config or [])}


def metrics_config(pieces: Sequence[str]) -> MetricsSettings:
    """What the pieces, `NAME=VALUE` each, say together.

    Raises:
        FlagError: a piece has another form.
    """
    found: dict[str, Any] = {}
    for piece in pieces:
        name, _, value = piece.partition("=")
        if name in _SWITCHES:
            try:
                found[name] = boolean(value)
            except BadValue as error:
                raise FlagError(f"--metrics-config {piece}: expected {error.expected}") from None
        elif name == _QUANTILES:
            found[name] = _quantiles(piece, value)
        else:
            raise FlagError(f"--metrics-config {piece}: expected NAME=VALUE with one of {', '.join((*_SWITCHES, _QUANTILES))}")
    return MetricsSettings(**found)


def _quantiles(piece: str, text: str) -> tuple[float, ...]:
    """Triton writes each with the error it allows, `0.5:0.05`; here that is the same for all."""
    try:
        ranks = tuple(float(part.partition(":")[0]) for part in text.split(","))
    except ValueError:
        ranks = ()
    if not 0 < len(ranks) <= _MOST_QUANTILES or not all(0 <= rank <= 1 for rank in ranks):
        raise FlagError(f"--metrics-config {piece}: expected up to {_MOST_QUANTILES} numbers from 0 to 1, such as 0.5:0.05,0.99:0.001")
    return ranks
