"""Rows: registered hosts and join tokens, and what operators do with them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet, Sum

from monitor.facts.formats import fact_from
from monitor.facts.readings import HostFact, HostState, JoiningHost
from monitor.gpus.policy import hosts as host_policy
from monitor.journal.rows import audit, events
from monitor.models import Gpu, Host, HostMinute, HostSample, JoinToken, LatestSnapshot
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.wakeups import wake

# Without a reading for so long, it is unknown what ran.
LONGEST_GAP = timedelta(seconds=15)
# By then, all loops of a service that has started again have looked at their host.
SETTLED = timedelta(seconds=10)
TOKEN_LIVES = timedelta(hours=24)
TOKEN_MARK = "gpj_"  # noqa: S105 - the beginning of each


def all_hosts() -> list[HostFact]:
    """Registered hosts and hosts with readings, by name."""
    last_readings = dict(_last_readings())
    rows = {row.name: row for row in _all_rows()}
    gpus = Counter(_hosts_of_gpus())
    return [
        _fact(name, rows.get(name), last_readings.get(name), gpus[name])
        for name in sorted(last_readings.keys() | rows.keys())
    ]


@compiled_once
def _last_readings() -> QuerySet[Any, tuple[str, datetime]]:
    return LatestSnapshot.objects.values_list("host", "at")


@compiled_once
def _all_rows() -> QuerySet[Host]:
    return Host.objects.all()


@compiled_once
def _hosts_of_gpus() -> QuerySet[Any, str]:
    return Gpu.objects.values_list("host", flat=True)


def takes_jobs(name: str) -> bool:
    """Whether new jobs may start there. A host that never registered takes them too."""
    return all(state == HostState.ACTIVE.value for state in _states(name))


@compiled_once
def _states(name: str) -> QuerySet[Any, str]:
    return Host.objects.filter(pk=name).values_list("state", flat=True)


def registered(names: Collection[str]) -> list[HostFact]:
    """Those of these hosts whose service has started since hosts register."""
    rows = Host.objects.filter(pk__in=names, started_at__isnull=False)
    by_name = {row.name: row for row in rows}
    if not by_name:
        return []
    last_readings = dict(LatestSnapshot.objects.filter(pk__in=by_name).values_list("host", "at"))
    return [_fact(name, row, last_readings.get(name), 0) for name, row in by_name.items()]


def find(name: str) -> HostFact | None:
    """One host; None: it is neither registered nor has it readings."""
    row = Host.objects.filter(pk=name).first()
    read_at = LatestSnapshot.objects.filter(pk=name).values_list("at", flat=True).first()
    return None if row is None and read_at is None else _fact(name, row, read_at, 0)


def _fact(name: str, row: Host | None, seen_at: datetime | None, gpus: int) -> HostFact:
    if row is None:
        return HostFact(name=name, seen_at=seen_at, gpus=gpus)
    return fact_from(HostFact, row, state=HostState(row.state), seen_at=seen_at, gpus=gpus)


def register(new: JoiningHost, now: datetime) -> bool:
    """Store what the host says about itself; True: it has joined for the first time."""
    row, is_new = Host.objects.get_or_create(name=new.name, defaults={"joined_at": now})
    row.instance, row.boot_id, row.version = new.instance, new.boot_id, new.version
    row.address, row.profile, row.started_at = new.address, new.profile, now
    row.log_address, row.key_mark = new.log_address, new.key_mark
    row.save(
        update_fields=[
            "instance", "key_mark", "boot_id", "version", "address", "log_address", "profile",
            "started_at",
        ]
    )  # fmt: skip
    return is_new


def set_models_address(name: str, address: str) -> None:
    """Store where the other hosts reach the endpoint for language models; "" = nowhere."""
    Host.objects.filter(pk=name).exclude(models_address=address).update(models_address=address)


def clear_down(name: str) -> bool:
    """The host has readings again. False: it was not confirmed down."""
    down = Host.objects.filter(pk=name, down_at__isnull=False)
    return name in confirmed_down() and bool(down.update(down_at=None, down_by=""))


def confirmed_down() -> list[str]:
    return [row.name for row in _all_rows() if row.down_at is not None]


def mark_silent(name: str, since: datetime, now: datetime) -> bool:
    """Compare-and-set, as each other host looks; True: this call is the first."""
    Host.objects.get_or_create(name=name, defaults={"joined_at": now})
    return bool(Host.objects.filter(pk=name, silent_since_at=None).update(silent_since_at=since))


def mark_heard(name: str) -> bool:
    """True: its silence had been reported."""
    is_silent = any(row.name == name and row.silent_since_at is not None for row in _all_rows())
    silent = Host.objects.filter(pk=name, silent_since_at__isnull=False)
    return is_silent and bool(silent.update(silent_since_at=None))


def has_readings(name: str, since: datetime, until: datetime) -> bool:
    """Whether this host stored a reading in that time."""
    between = (int(since.timestamp()), int(until.timestamp()))
    return HostSample.objects.filter(host=name, t__range=between).exists()


def read_until(name: str, now: datetime) -> datetime | None:
    """The end of the newest second in which this host stored a reading.

    A clock that was set back leaves readings of the future, which do not count.
    """
    samples = HostSample.objects.filter(host=name, t__lt=int(now.timestamp()))
    newest = samples.aggregate(newest=Max("t"))["newest"]
    return None if newest is None else _end_of(newest)


def read_before_pause(name: str, now: datetime) -> datetime | None:
    """The same, before this host stored none for a long time, as when its service did not run.

    None: there was no such time, or it has been over for longer than SETTLED.
    """
    samples = HostSample.objects.filter(host=name, t__lte=now.timestamp()).order_by("-t")
    newest = samples.values_list("t", flat=True)[: SETTLED.seconds + 1]
    for after, before in pairwise([int(now.timestamp()), *newest]):
        if now.timestamp() - after > SETTLED.seconds:
            return None
        if after - before > LONGEST_GAP.seconds:
            return _end_of(before)
    return None


def _end_of(second: int) -> datetime:
    return datetime.fromtimestamp(second + 1, UTC)


def seconds_with_readings(name: str, since: datetime) -> int:
    """Of this host, from the rollups of whole minutes."""
    minutes = HostMinute.objects.filter(host=name, t__gte=since.timestamp())
    return minutes.aggregate(seconds=Sum("seen_s"))["seconds"] or 0


def forget(name: str) -> None:
    """Forget the host and its newest reading. Its history stays."""
    Host.objects.filter(pk=name).delete()
    LatestSnapshot.objects.filter(pk=name).delete()


def is_valid_token(text: str, now: datetime) -> bool:
    return JoinToken.objects.filter(digest=_digest(text), expires_at__gt=now).exists()


def use_token(text: str) -> bool:
    """A token is good for one host. False: another host was faster."""
    return bool(JoinToken.objects.filter(digest=_digest(text)).delete()[0])


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()


REASON_LIMIT = 200
WORDS = {
    HostState.ACTIVE: "enabled",
    HostState.DRAINED: "drained",
    HostState.DISABLED: "disabled",
}


def change(name: str, state: HostState, by: str, reason: str, now: datetime) -> bool:
    """False: the host had that state already. A host without a row of its own gets one."""
    reason = " ".join(reason.split())[:REASON_LIMIT]
    with transaction.atomic():
        Host.objects.get_or_create(name=name, defaults={"joined_at": now})
        others = Host.objects.filter(pk=name).exclude(state=state.value, reason=reason)
        if not others.update(state=state.value, changed_by=by, reason=reason, changed_at=now):
            return False
        why = f": {reason}" if reason else ""
        _tell("HOST_CHANGED", f"{by} {WORDS[state]} the host {name}{why}.", name, by, now)
    return True


def confirm_down(host: HostFact, by: str, now: datetime) -> str | None:
    """Let jobs with `requeue` start on other hosts. Returns why not; None = done.

    A host that still sends readings is not down.
    """
    if host.seen_at is not None and host_policy.silent_since(host, now) is None:
        return f"{host.name} still sends readings, so it is not down."
    with transaction.atomic():
        Host.objects.get_or_create(name=host.name, defaults={"joined_at": now})
        if not Host.objects.filter(pk=host.name, down_at=None).update(down_at=now, down_by=by):
            return f"{host.name} was confirmed down already."
        text = f"{by} confirmed that the host {host.name} is down."
        _tell("HOST_DOWN", text, host.name, by, now, "warning")
    return None


def remove(host: HostFact, by: str, now: datetime) -> str | None:
    """Forget a host that has no contact. Returns why not; None = done."""
    if host.seen_at is not None and host_policy.silent_since(host, now) is None:
        return f"gpucoord runs on {host.name}. Stop it first."
    with transaction.atomic():
        forget(host.name)
        _tell("HOST_REMOVED", f"{by} removed the host {host.name}.", host.name, by, now)
    return None


def make_token(by: str, now: datetime) -> str:
    """A join token for one host, valid for a day; the text is stored nowhere."""
    text = TOKEN_MARK + secrets.token_urlsafe(32)
    with transaction.atomic():
        JoinToken.objects.filter(expires_at__lte=now).delete()
        JoinToken.objects.create(
            digest=_digest(text), made_by=by, created_at=now, expires_at=now + TOKEN_LIVES
        )
        audit.note("JOIN_TOKEN_MADE", f"{by} made a join token.", by=by, now=now)
    return text


def _tell(kind: str, text: str, name: str, by: str, now: datetime, severity: str = "info") -> None:
    audit.note(kind, text, by=by, now=now, subject=f"host {name}")
    events.add(kind, text, now=now, host=name, severity=severity)
    wake("scheduler")
    wake("live")
