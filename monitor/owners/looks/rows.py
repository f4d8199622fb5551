"""The looks of all owners in this process: the same on each of its pages."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Lock

from django.contrib.auth.models import User
from django.db.models import Sum

from monitor.models import ProcessHour
from monitor.owners.looks.policy import Look, looks, next_look
from monitor.runtime.policy import TimedCache

# The time whose use counts for the colours, and how long they are kept.
LOOK_BACK, KEPT = timedelta(days=7), timedelta(hours=1)

_lock = Lock()
_looks: dict[str, Look] = {}


def look_of(name: str) -> Look:
    """An owner who was not there yet gets the next look that is free."""
    with _lock:
        if name not in _looks:
            _looks[name] = next_look(name, _looks)
        return _looks[name]


def _load(now: datetime) -> dict[str, float]:
    """The held GPU time of each owner, and all users without any."""
    since = int((now - LOOK_BACK).timestamp())
    users = User.objects.filter(is_active=True).values_list("username", flat=True)
    sizes = dict.fromkeys(users, 0.0)
    rows = ProcessHour.objects.filter(t__gte=since).order_by()
    columns = ("use__job_owner", "use__user")
    for job_owner, user, held_s in rows.values_list(*columns).annotate(Sum("held_s")):
        if name := job_owner or user:
            sizes[name] = sizes.get(name, 0.0) + held_s
    return sizes


def _give(now: datetime) -> dict[str, Look]:
    sizes = _load(now)
    with _lock:
        given = looks(sizes)
        for name in sorted(_looks.keys() - sizes.keys()):
            given[name] = next_look(name, given)
        _looks.clear()
        _looks.update(given)
    return given


# refresh(now) gives the colours to the owners with the most use, if that was long ago. It returns
# the looks as they were given.
refresh = TimedCache(_give, KEPT)


def forget() -> None:
    """No owner has a look."""
    refresh.forget()
    _looks.clear()
