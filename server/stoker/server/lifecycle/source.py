"""Where models come from: folders below roots, or a list of models each with a folder of its own."""

from pathlib import Path
from typing import Protocol

from stoker.server.lifecycle.listing import ModelListing, RepositorySnapshot


class ModelSource(Protocol):
    """What the manager knows of it. Calls block, and may come from threads."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders to watch for changes."""

    def check_roots(self) -> None:
        """Looks whether there is anything to read.

        Raises:
            RepositoryUnreadable: there is not.
        """

    def scan(self) -> RepositorySnapshot:
        """Everything that is there now.

        Raises:
            RepositoryUnreadable: nothing could ever be read.
        """

    def find(self, name: str) -> ModelListing | None:
        """The model `name` as it is now; None if there is none."""
