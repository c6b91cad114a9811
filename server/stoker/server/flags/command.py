"""From a command line to what the server is started with."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.server.flags.api_key import key_notices, key_of_environment
from stoker.server.flags.environment import unknown_variables
from stoker.server.flags.groups import GROUPS, FlagGroup, annotations, flag_of
from stoker.server.flags.reading import Page, read_flags
from stoker.server.flags.rules import check_models, check_ports, has_plain_public_port
from stoker.server.flags.sockets import check_sockets
from stoker.server.flags.spelling import spell
from stoker.server.server_config import ServerConfig


def read_command(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerConfig | Page:
    """What `arguments` and `environment` ask for: a server, or a page.

    Raises:
        FlagError: they allow no start.
    """
    given = read_flags(spell(arguments), environment)
    if isinstance(given, Page):
        return given
    settings: dict[str, Any] = {}
    notices: list[str] = []
    for kind in GROUPS:
        group: FlagGroup = kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})
        of_group = group.settings()
        notices += of_group.pop("notices", ())
        settings |= of_group
    if settings["api_key"] is None:
        settings["api_key"] = key_of_environment(environment)
    notices += unknown_variables(environment, (name for kind in annotations().values() for name in flag_of(kind).variables))
    config = ServerConfig(**settings, notices=tuple(notices))
    check_models(config)
    check_ports(config)
    check_sockets(config)
    return dataclasses.replace(config, notices=config.notices + key_notices(config.api_key, is_exposed=has_plain_public_port(config)))
