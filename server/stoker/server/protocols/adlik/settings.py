"""What an operator sets of Adlik's wire interface."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from stoker.server.lifecycle.settings import ControlMode


class RestV1(StrEnum):
    """Whose protocol the REST routes below /v1 speak: TensorFlow Serving uses the same two URLs as Adlik."""

    AUTO = "auto"
    """Told from each request; see `rest_choice`."""
    ADLIK = "adlik"
    TFS = "tfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdlikSettings:
    """Settings of Adlik's wire interface.

    Attributes:
        rest_v1: Whose protocol the routes below /v1 speak.
        prefer_adlik: Under `auto`, whether metadata is answered in Adlik's form whatever the model's platform.
        allow_operate: Whether ModelOperateService does anything.
        operate_root: The folder below which the paths that clients name must lie; None: no path is taken.
        repositories: The model repository's roots.
        control_mode: Who decides what is loaded.
    """

    rest_v1: RestV1 = RestV1.AUTO
    prefer_adlik: bool = False
    allow_operate: bool = False
    operate_root: Path | None = None
    repositories: tuple[Path, ...] = ()
    control_mode: ControlMode = ControlMode.POLL
