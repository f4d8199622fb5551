"""Sessions of users: what they remember, when they end, and how a user ends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends import db
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.middleware import SessionMiddleware
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from gpucoord_site.models import UserSession
from monitor.usage.rows import rollups

# A session ends after this time also when it is in use.
LONGEST = timedelta(days=14)
# A busy user would else write a row with each request.
USE_IS_SAVED_EVERY_S = 300.0


def listen() -> None:
    """Fill in new sessions, and prune those that are over."""
    user_logged_in.connect(_remember, dispatch_uid="user_sessions")
    rollups.register_outdated(_too_old)


class Sessions(SessionMiddleware):
    """Django's sessions with an idle limit: using one extends it, up to LONGEST."""

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        session = request.session
        if session.accessed and session.get(SESSION_KEY) and not _is_polled(request):
            _extend(session, timezone.now().timestamp())
        return super().process_response(request, response)


def of_user(user: User, now: datetime) -> QuerySet[UserSession]:
    """The sessions of a user that are not over, the latest used first."""
    return UserSession.objects.filter(user=user, expire_date__gt=now).order_by("-seen_at")


def end(sessions: QuerySet[UserSession]) -> int:
    """End sessions; their open pages and terminals close at once. Returns how many there were."""
    return sessions.delete()[0]


def public_id(session_key: str) -> str:
    """Names a session on a page. The key itself would open the session."""
    return sha256(session_key.encode()).hexdigest()[:20]


def browser_name(agent: str) -> str:
    """Browser and system, such as "Firefox, Linux"; empty for an unknown agent."""
    browsers = {"Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome",
                "Safari/": "Safari", "curl/": "curl"}  # fmt: skip
    systems = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows",
               "Mac OS X": "macOS", "Linux": "Linux"}  # fmt: skip
    words = (next((n for sign, n in names.items() if sign in agent), "") for names in
             (browsers, systems))  # fmt: skip
    return ", ".join(filter(None, words))


def _remember(request: HttpRequest, user: User, **_: Any) -> None:
    now = timezone.now().timestamp()
    request.session.update(
        {
            SIGNED_IN_AT: now,
            SEEN_AT: now,
            ADDRESS: request.META.get("REMOTE_ADDR", "")[:45],
            BROWSER: browser_name(request.META.get("HTTP_USER_AGENT", "")),
        }
    )


def _extend(session: SessionBase, now: float) -> None:
    if now - session.get(SIGNED_IN_AT, now) > LONGEST.total_seconds():
        session.flush()
        return
    every_s = min(USE_IS_SAVED_EVERY_S, settings.SESSION_COOKIE_AGE / 10)
    if now - session.get(SEEN_AT, 0.0) >= every_s:
        session[SEEN_AT] = now


def _is_polled(request: HttpRequest) -> bool:
    """A page that refreshes itself is no use of it."""
    return request.method == "GET" and "HX-Request" in request.headers


def _too_old(keep: rollups.RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    yield UserSession.objects.filter(expire_date__lte=now)


# SESSION_ENGINE: sessions in the database, each with its user.

# Facts that a session keeps about itself; times are epoch seconds.
SIGNED_IN_AT = "signed_in_at"
SEEN_AT = "seen_at"
ADDRESS = "address"
BROWSER = "browser"


class SessionStore(db.SessionStore):
    @classmethod
    def get_model_class(cls) -> Any:
        from gpucoord_site.models import UserSession

        return UserSession

    def create_model_instance(self, data: Mapping[str, Any]) -> Any:
        row: Any = super().create_model_instance(dict(data))
        row.user_id = data.get(SESSION_KEY)
        row.signed_in_at, row.seen_at = _time(data.get(SIGNED_IN_AT)), _time(data.get(SEEN_AT))
        row.address, row.browser = data.get(ADDRESS, ""), data.get(BROWSER, "")
        return row


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
