"""What an operator sets of Adlik's wire interface, with its flags."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from stoker.server.core.flag import Panel, one_of, path, switch
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
        prefer_adlik: Under `auto`; whatever the model's platform.
        operate_root: None: no path is taken.
        repositories: The model repository's roots.
        control_mode: Who decides what is loaded.
    """

    rest_v1: Annotated[
        RestV1, one_of("rest-v1", RestV1, panel=Panel.NETWORK, text="Whose REST protocol /v1 speaks: auto (by the request), adlik or tfs.")
    ] = RestV1.AUTO
    prefer_adlik: Annotated[
        bool, switch("prefer-adlik", panel=Panel.NETWORK, text="Under --rest-v1=auto, /v1 metadata is Adlik's for every model.")
    ] = False
    allow_operate: Annotated[
        bool, switch("allow-model-operate", panel=Panel.NETWORK, text="Let Adlik's ModelOperateService change the repository.")
    ] = False
    operate_root: Annotated[
        Path | None,
        path("model-operate-root", panel=Panel.NETWORK, text="Folder below which the paths lie that ModelOperateService may be given."),
    ] = None
    repositories: tuple[Path, ...] = ()
    control_mode: ControlMode = ControlMode.POLL
