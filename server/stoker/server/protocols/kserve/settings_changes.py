"""Which clients may change the log and trace settings of the server."""

from stoker.backends.api.errors import Forbidden
from stoker.server.rpc.restricted_apis import Category, Restrictions


class SettingsChanges:
    """A change concerns all clients: it turns errors out of the log, or has the inputs of others written to a trace file."""

    def __init__(self, is_allowed: bool | None, *, is_local: bool) -> None:
        """Sets who may.

        Args:
            is_allowed: What the operator says. None: clients of this machine, and those that bring a key.
            is_local: Whether the server listens on loopback addresses and Unix-domain sockets alone.
        """
        self._is_allowed = is_allowed
        self._is_local = is_local

    def is_open(self, category: Category, restrictions: Restrictions) -> bool:
        """Whether clients from other machines may change what belongs to `category`, without any key."""
        return bool(self._is_allowed) and not self._is_local and not restrictions.restricts(category)

    def require(self, category: Category, restrictions: Restrictions) -> None:
        """Lets a call pass that changes what belongs to `category`, on a port with `restrictions`.

        Raises:
            Forbidden: its client may not.
        """
        is_allowed = self._is_allowed
        if is_allowed is None:
            is_allowed = self._is_local or restrictions.restricts(category)
        if not is_allowed:
            raise Forbidden(
                f"clients may not change the {category} settings of this server: it must listen on loopback addresses alone, require a key "
                f"for '{category}', or be started with --allow-settings-changes"
            )
