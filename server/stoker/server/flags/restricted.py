"""`--http-restricted-api` and `--grpc-restricted-protocol`: `<category>[,<category>...]:<key>=<value>`."""

import re
from collections.abc import Mapping, Sequence

from stoker.server.flags.values import FlagError
from stoker.server.rpc.restricted_apis import Category, Key


def restricted_keys(flag: str, assignments: Sequence[str], *, what: str, prefix: str = "") -> Mapping[Category, Key]:
    """By category, the key that calls must bring.

    Args:
        flag: The flag's name, for errors.
        assignments: Its values.
        what: Triton's word for a category there.
        prefix: Stands before the names of headers.

    Raises:
        FlagError: another form, an unknown category, or one that stands in two groups. The value of a key is never shown.
    """
    keys: dict[Category, Key] = {}
    for assignment in assignments:
        names, _, rest = assignment.partition(":")
        header, _, value = rest.partition("=")
        if not (header and value):
            # Of what is written in another form, nobody knows which part is the secret: only what begins it is shown.
            shown = re.split("[:=]", assignment, maxsplit=1)
            hidden = "..." if len(shown) > 1 else ""
            raise FlagError(f"--{flag}={shown[0]}{hidden}: expected <{what}>[,<{what}>...]:<key>=<value>")
        if not (header.isascii() and header.replace("-", "").replace("_", "").isalnum()):
            raise FlagError(f"--{flag} {names}:{header}=...: a key's name is made of letters, digits, '-' and '_'")
        for name in names.split(","):
            if name not in set(Category):
                raise FlagError(f"--{flag}: unknown restricted {what} '{name}', expected {', '.join(Category)}")
            category = Category(name)
            if category in keys:
                raise FlagError(f"--{flag}: restricted {what} '{name}' can not be specified in multiple config groups")
            keys[category] = Key(f"{prefix}{header.lower()}", value)
    return keys
