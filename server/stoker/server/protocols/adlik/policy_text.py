"""Changes the version policy in the text of a config.pbtxt and leaves every other character of it as people wrote it."""

import re
from typing import Final

from stoker.backends.api.errors import ModelLoadError
from stoker.server.config.pbtxt import empty_config, parse_pbtxt
from stoker.server.core.model_config import SpecificVersions
from stoker.server.pb import model_config_pb2 as pb

_FIELD: Final = "version_policy"
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[\w.+-]+)
      | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def with_only(text: str, version: int, *, model_name: str) -> str:
    """`text` with a policy that wants `version` and nothing else.

    Raises:
        ModelLoadError: the text is not a valid configuration.
    """
    source = f"{model_name}/config.pbtxt"
    before = parse_pbtxt(text, source=source, model_name=model_name).message if text.strip() else empty_config(model_name).message
    policy = f"{_FIELD} {{ specific {{ versions: [ {version} ] }} }}"
    spans = _spans(text)
    if spans:
        changed = text
        for begin, end in reversed(spans[1:]):
            changed = changed[:begin] + changed[end:]
        changed = changed[: spans[0][0]] + policy + changed[spans[0][1] :]
    else:
        changed = f"{text.rstrip()}\n{policy}\n".lstrip("\n")
    after = parse_pbtxt(changed, source=source, model_name=model_name)
    if after.version_policy != SpecificVersions((version,)) or _without_policy(after.message) != _without_policy(before):
        raise ModelLoadError(f"{source}: its {_FIELD} cannot be replaced without changing the rest; edit the file by hand")
    return changed


def _spans(text: str) -> list[tuple[int, int]]:
    """Where each top-level `version_policy` begins and ends."""
    found: list[tuple[int, int]] = []
    depth, begin = 0, None
    for token in _TOKEN.finditer(text):
        kind, word = token.lastgroup, token.group()
        if kind == "word" and depth == 0 and word == _FIELD:
            begin = token.start()
        elif kind == "mark" and word in "{<[":
            depth += 1
        elif kind == "mark" and word in "}>]":
            depth -= 1
            if depth == 0 and begin is not None:
                found.append((begin, token.end()))
                begin = None
    return found


def _without_policy(message: pb.ModelConfig) -> pb.ModelConfig:
    rest = pb.ModelConfig()
    rest.CopyFrom(message)
    rest.ClearField("version_policy")
    return rest
