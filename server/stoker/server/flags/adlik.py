"""Flags of Adlik's wire interface."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from stoker.server.flags.declare import Switch, flag, one_of, path
from stoker.server.flags.rules import check_model_operate
from stoker.server.protocols.adlik.settings import RestV1

_PANEL = "Network"


@dataclass(frozen=True, kw_only=True)
class AdlikFlags:
    """The flags below /v1 and of ModelOperateService."""

    rest_v1: Annotated[
        RestV1, one_of("rest-v1", RestV1, panel=_PANEL, text="Whose REST protocol /v1 speaks: auto (told by each request), adlik or tfs.")
    ] = RestV1.AUTO
    prefer_adlik: Annotated[
        Switch, flag("prefer-adlik", panel=_PANEL, text="Under --rest-v1=auto, /v1 metadata is Adlik's for every model.")
    ] = False
    allow_model_operate: Annotated[
        Switch, flag("allow-model-operate", panel=_PANEL, text="Let Adlik's ModelOperateService change the repository.")
    ] = False
    model_operate_root: Annotated[
        Path | None,
        path("model-operate-root", panel=_PANEL, text="Folder below which the paths lie that ModelOperateService may be given."),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Fields of `ServerConfig`.

        Raises:
            FlagError: a root that is no folder, or that nothing uses.
        """
        check_model_operate(is_allowed=self.allow_model_operate, root=self.model_operate_root)
        return {
            "rest_v1": self.rest_v1,
            "prefer_adlik": self.prefer_adlik,
            "allow_model_operate": self.allow_model_operate,
            "model_operate_root": self.model_operate_root,
        }
