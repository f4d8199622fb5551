"""Which account the person behind a process has: that which logged in, where sudo hid it."""

from __future__ import annotations

# What the kernel says of a process that nobody logged in for.
NO_LOGIN = 0xFFFFFFFF
# Below are root and the accounts of services: nobody's own.
FIRST_PERSON = 1000


def owner_uid(uid: int | None, login_uid: int | None, container: str | None) -> int | None:
    """A service account's process belongs to the one who logged in and started it.

    In a container the login is that of whoever started the container's runtime: it says nothing.
    """
    if uid is None or uid >= FIRST_PERSON or container is not None:
        return uid
    if login_uid in (None, NO_LOGIN, 0):
        return uid
    return login_uid
