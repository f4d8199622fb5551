"""Sessions of users: what they remember, when they end, and how a user ends them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import SESSION_KEY, login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in
from django.contrib.auth.views import PasswordResetConfirmView
from django.contrib.sessions.backends import db
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.middleware import SessionMiddleware
from django.db.models import Model, QuerySet
from django.db.models.signals import post_delete, post_save
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from gpucoord_site.models import UserSession
from monitor.journal.rows import audit
from monitor.models import ApiToken
from monitor.owners import rows
from monitor.pages.hub import LOGINS
from monitor.runtime.rows.wakeups import wake
from monitor.usage.rows import rollups
from scheduler.jobs.rows import changes as job_changes

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


# Logins by a link: of `gpucoord login`, and of an invitation.
#
# A web site could send browsers to a link of its author, whose user they would then act as. So a
# browser that comes from another site, or is logged in as another user, is asked first.


logger = logging.getLogger(__name__)
# Values of Sec-Fetch-Site: the user typed or pasted the address, or came from a page of gpucoord.
TRUSTED = ("none", "same-origin")


@login_not_required
@require_GET
@never_cache
def open_link(request: HttpRequest, secret: str) -> HttpResponse:
    """Log in, which uses the link up, or ask whether to."""
    if _is_no_visit(request):
        return HttpResponse(status=204)
    now = timezone.now()
    owner = rows.owner_of_link(secret, now)
    if owner is not None and (_comes_from_elsewhere(request) or _is_another(request, owner)):
        context = {"owner": owner, "secret": secret}
        return render(request, "registration/link_confirm.html", context)
    return _use(request, secret, now)


@login_not_required
@require_POST
@never_cache
def confirm(request: HttpRequest, secret: str) -> HttpResponse:
    """Log in after the question. The form has a CSRF token, so no other site can send it."""
    return _use(request, secret, timezone.now())


def _use(request: HttpRequest, secret: str, now: datetime) -> HttpResponse:
    user = rows.use_link(secret, now)
    if user is None:
        logger.warning("A login link was refused", extra={"kind": "LOGIN_LINK_REFUSED"})
        return render(request, "registration/link_refused.html", status=403)
    login(request, user, "django.contrib.auth.backends.ModelBackend")
    name = user.get_username()
    text = f"{name} logged in by a login link"
    audit.note("LOGIN_LINK_USED", text, by=name, now=now, subject=f"user {name}")
    return redirect(settings.LOGIN_REDIRECT_URL)


def _is_no_visit(request: HttpRequest) -> bool:
    """The browser only guesses that the link will be opened, or loads it as a part of a page."""
    headers = request.headers
    is_guess = headers.get("Sec-Purpose", "").startswith("prefetch")
    return is_guess or headers.get("Sec-Fetch-Mode", "navigate") != "navigate"


def _comes_from_elsewhere(request: HttpRequest) -> bool:
    """By what the browser says. Over plain HTTP it says at most which page had the link."""
    headers = request.headers
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site not in TRUSTED
    try:
        return urlsplit(headers.get("Referer", "")).netloc not in ("", request.get_host())
    except ValueError:
        return True


def _is_another(request: HttpRequest, owner: User) -> bool:
    return request.user.is_authenticated and request.user.pk != owner.pk


# The page of an invitation: sets the user's password and logs in.


@method_decorator(login_not_required, name="dispatch")
class OpenInvitation(PasswordResetConfirmView):
    """The token is valid until the password is set, the user logs in, or it expires."""

    template_name = "registration/invitation.html"
    success_url = reverse_lazy("start")
    post_reset_login = True
    post_reset_login_backend = "django.contrib.auth.backends.ModelBackend"

    def get_user(self, uidb64: str) -> User | None:
        user: User | None = super().get_user(uidb64)
        return user if user is not None and user.is_active else None

    def form_valid(self, form: SetPasswordForm[User]) -> HttpResponse:
        response = super().form_valid(form)
        name, now = form.user.get_username(), timezone.now()
        text = f"{name} set a password by an invitation"
        audit.note("PASSWORD_SET", text, by=name, now=now, subject=f"user {name}")
        logger.info("%s", text, extra={"kind": "PASSWORD_CHANGED", "user": name})
        return response

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        context = super().get_context_data(**more)
        return context | {"invited": self.user}


# Consequences of changes to users: open sockets check their login at once when it has ended.


# Fields of a user on which logins depend.
DECISIVE = {"is_active", "password"}


def listen_for_logouts() -> None:
    """Logouts delete a session, and a new password gives other sessions a wrong hash."""
    post_delete.connect(_session_ended, sender=UserSession, dispatch_uid="login_changes")
    post_delete.connect(_token_revoked, sender=ApiToken, dispatch_uid="login_changes")
    post_save.connect(_user_changed, sender=User, dispatch_uid="login_changes")


def _session_ended(instance: UserSession, **_: Any) -> None:
    if instance.user_id is not None and instance.expire_date > timezone.now():
        _tell(instance.user_id)


def _token_revoked(instance: ApiToken, **_: Any) -> None:
    """A token that is deleted after it expired ends nothing."""
    if instance.expires_at is None or instance.expires_at > timezone.now():
        _tell(instance.user_id)


def _user_changed(
    instance: User, created: bool, update_fields: Collection[str] | None, **_: Any
) -> None:
    if not created and (update_fields is None or DECISIVE.intersection(update_fields)):
        _tell(instance.pk)


def _tell(user_id: int) -> None:
    wake(LOGINS, str(user_id).encode())


# Consequences of creating or deactivating a user.


def listen_to_users() -> None:
    post_save.connect(_saved, sender=User, dispatch_uid="gpucoord.leavers")


def _saved(
    instance: User,
    created: bool,
    update_fields: Collection[str] | None,
    raw: bool = False,
    **_: Any,
) -> None:
    """Deactivated: hold the queued jobs until an operator releases them, and revoke the tokens.

    Created: list the OS account with the user's name, unless the creator decides about that.
    """
    if created:
        if not raw and not getattr(instance, "has_listed_account", False):
            now, origin = timezone.now(), rows.SAME_NAME
            rows.assign(instance, instance.get_username(), now, origin)
        return
    might_be_off = update_fields is None or "is_active" in update_fields
    if might_be_off and not instance.is_active:
        job_changes.hold_all_of(instance, timezone.now())
        rows.revoke_all(instance)
