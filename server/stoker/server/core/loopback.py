"""Which addresses only this machine reaches."""

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether `address`, as an operator writes it, is of this machine alone: `localhost`, 127.0.0.0/8 or ::1 (RFC 5735, RFC 4291).

    A name other than `localhost` counts as reachable from elsewhere: what it resolves to may change.
    """
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
