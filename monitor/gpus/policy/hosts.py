"""Policy: whether a host may join, whether contact with it is lost, and sentences about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from monitor.facts.formats import first_few
from monitor.facts.readings import HostFact, HostState, JoiningHost

# Readings are stored every second.
SILENT_AFTER = timedelta(seconds=15)
SHAPES = {HostState.ACTIVE: "ok", HostState.DRAINED: "paused", HostState.DISABLED: "paused"}


def silent_since(host: HostFact, now: datetime) -> datetime | None:
    """The time of its last reading if that is more than 15 s ago; None: it is in contact.

    A host without any reading has never been in contact, which is not a loss of it.
    """
    if host.seen_at is None or now - host.seen_at <= SILENT_AFTER:
        return None
    return host.seen_at


def join_problem(
    new: JoiningHost, hosts: Sequence[HostFact], now: datetime, *, has_token: bool, shared: bool
) -> str | None:
    """Why the host may not start, in a sentence; None = it may.

    shared: the database is on a server, so that other hosts can use it.
    """
    registered = next((host for host in hosts if host.name == new.name), None)
    if registered is not None and registered.state is HostState.DISABLED:
        by = f" by {registered.changed_by}" if registered.changed_by else ""
        return f"The host {new.name} is disabled{by}. An operator enables it at /hosts/."
    if not shared:
        return None
    return (
        _name_problem(new, registered, now)
        or _identity_problem(new, registered, hosts, has_token)
        or _version_problem(new, hosts, now)
        or _key_problem(new, hosts, now)
    )


def _name_problem(new: JoiningHost, registered: HostFact | None, now: datetime) -> str | None:
    """Two services of one name would each take the jobs of the other for lost."""
    if (
        registered is None
        or registered.instance in ("", new.instance)
        or not _in_contact(registered, now)
    ):
        return None
    return (
        f"gpucoord runs as {new.name} on another machine or data folder. Set GPUCOORD_NODE to"
        " another name, or stop it there and wait 15 seconds."
    )


def _identity_problem(
    new: JoiningHost, registered: HostFact | None, hosts: Sequence[HostFact], has_token: bool
) -> str | None:
    if (
        has_token
        or not hosts
        or (registered is not None and registered.instance in ("", new.instance))
    ):
        return None
    how = (
        "Make a join token at /hosts/ (or with gpucoord join-token) and set GPUCOORD_JOIN_TOKEN"
        " for the next start."
    )
    if registered is None:
        return f"The host {new.name} is not registered in this database. {how}"
    return (
        f"Another machine or data folder is registered as {new.name}. Set GPUCOORD_NODE to another"
        f" name. To replace that host: {how[0].lower()}{how[1:]}"
    )


def _version_problem(new: JoiningHost, hosts: Sequence[HostFact], now: datetime) -> str | None:
    others = [host for host in _others(new, hosts, now) if host.version not in ("", new.version)]
    if not others:
        return None
    running = first_few([f"{host.version} on {host.name}" for host in others])
    return (
        f"This is gpucoord {new.version}, and the database is in use by {running}."
        " All hosts need the same version: stop the others, or install theirs here."
    )


def _key_problem(new: JoiningHost, hosts: Sequence[HostFact], now: datetime) -> str | None:
    others = [host for host in _others(new, hosts, now) if host.key_mark not in ("", new.key_mark)]
    if not others:
        return None
    return (
        f"The secret_key in the data folder differs from that of {others[0].name}. Copy secret_key"
        f" from the data folder of {others[0].name}: logs of other hosts, logins and alert channels"
        " need the same key."
    )


def _others(new: JoiningHost, hosts: Sequence[HostFact], now: datetime) -> list[HostFact]:
    """The other hosts that run now."""
    return [host for host in hosts if host.name != new.name and _in_contact(host, now)]


def _in_contact(host: HostFact, now: datetime) -> bool:
    return host.seen_at is not None and silent_since(host, now) is None


def contact_sentence(host: HostFact, since: str) -> str:
    """About the jobs of a silent host; `since`: a time in words."""
    if host.down_at is not None:
        return f"{host.name} was confirmed down by {host.down_by}. Contact lost since {since}."
    return (
        f"Contact with {host.name} is lost since {since}. Its jobs may still run;"
        " nothing is restarted elsewhere."
    )


def elsewhere(host: str, address: str, path: str) -> str:
    """Where to read a file that is on another host."""
    where = f"The files of this job are on the host {host}"
    if address:
        return f"{where}. Read them at {address.rstrip('/')}{path}."
    return (
        f"{where}, which serves no pages to other hosts. An operator can read them there, or set"
        " an address in `host` there that the other hosts reach, and restart gpucoord."
    )
