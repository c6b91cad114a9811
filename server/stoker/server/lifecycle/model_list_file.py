"""`ModelListFile`: a file with a list of models, read once or again and again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from stoker.backends.api.errors import ServingError
from stoker.server.config.errors import ConfigError, Problem
from stoker.server.config.serving_files import read_model_list
from stoker.server.core.daemon_thread import in_daemon_thread
from stoker.server.core.model_list import ListedModel

log = logging.getLogger("stoker.lifecycle")

MAX_FILE_BYTES: Final = 4 << 20
Replace = Callable[[Sequence[ListedModel]], Awaitable[None]]


class ModelListFile:
    """A ModelServerConfig in text format. Confined to: one caller at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: bytes | None = None
        self._trouble = ""

    def read(self) -> tuple[ListedModel, ...]:
        """The models of the file as it is now. Blocks.

        Raises:
            ConfigError: something is wrong with it. OSError: it cannot be read.
        """
        content = read_text_file(self._path)
        self._content = content.encode()
        return read_model_list(content, source=self._path.name, folder=self._path.parent.absolute())

    async def follow(self, replace: Replace, period_s: float, *, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Reads the file every `period_s` until cancelled, and passes it to `replace` whenever its content has changed.

        A file that cannot be used is logged, once for each trouble, and what is served goes on.
        """
        while True:
            await wait(period_s)
            before = self._content
            try:
                models = await in_daemon_thread("model-list", self.read)
                if self._content != before:
                    log.info("%s has changed: following it", self._path.name)
                    await replace(models)
                self._trouble = ""
            except (ServingError, OSError) as error:
                self._say(error)

    def _say(self, error: Exception) -> None:
        text = f"{self._path.name} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        if text != self._trouble:
            log.error("%s (what is served goes on serving)", text)
        self._trouble = text


def read_text_file(path: Path) -> str:
    """The text of a file that the operator names. Blocks.

    Raises:
        ConfigError: it is too large, or not UTF-8. OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError([Problem(path.name, None, "(file)", f"larger than {MAX_FILE_BYTES} bytes")])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(path.name, None, "(file)", f"not UTF-8 at byte {error.start}")]) from None
