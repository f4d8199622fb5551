"""The page of a user's own account: password, API tokens, agents and sessions."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout, update_session_auth_hash
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from gpucoord_site.accounts import sessions as account_sessions
from monitor.facts.accounts import ALL_SCOPES, TokenScope, scopes_of, scopes_text
from monitor.models import Agent, ApiToken
from monitor.owners import rows as tokens
from scheduler.jobs.rows import changes
from scheduler.limits.quotas import pages as agent_pages
from scheduler.limits.quotas import rows

DAYS = (7, 30, 90, 365)
SUBMITTING = scopes_text({TokenScope.READ, TokenScope.SUBMIT})
SCOPES = [
    (scopes_text({TokenScope.READ}), "read"),
    (SUBMITTING, "read, submit jobs and change own jobs"),
    (scopes_text(ALL_SCOPES), "all my rights"),
]


class LoginForm(AuthenticationForm):
    """The password form of the login page."""

    error_messages = AuthenticationForm.error_messages | {
        "invalid_login": "The user name or the password is wrong. Both are case-sensitive."
    }


class OwnPasswordForm(PasswordChangeForm):
    """Changes the password; may revoke the tokens as well."""

    revoke_tokens = forms.BooleanField(required=False, label="Revoke my API tokens too")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The form is not the first thing on its page.
        self.fields["old_password"].widget.attrs.pop("autofocus", None)


class AgentForm(forms.Form):
    """A new agent with its token."""

    name = forms.CharField(max_length=40, label="Name of the agent")
    running_jobs = forms.IntegerField(
        min_value=1, max_value=100, initial=2, label="Running jobs at a time"
    )
    gpu_minutes = forms.IntegerField(
        min_value=0, max_value=1_000_000, initial=240, label="GPU-minutes a day"
    )
    days = forms.TypedChoiceField(
        coerce=int, choices=[(days, f"{days} days") for days in DAYS], initial=30, label="Valid for"
    )

    def clean_name(self) -> str:
        return _printable(self.cleaned_data["name"])


class TokenForm(forms.Form):
    """A new token. Every token expires."""

    name = forms.CharField(max_length=80, required=False, label="Name (optional)")
    days = forms.TypedChoiceField(
        coerce=int, choices=[(days, f"{days} days") for days in DAYS], initial=90, label="Valid for"
    )

    scopes = forms.ChoiceField(
        choices=SCOPES, initial=SUBMITTING, required=False, label="Rights of the token"
    )

    def clean_scopes(self) -> str:
        return self.cleaned_data["scopes"] or SUBMITTING

    def clean_name(self) -> str:
        return _printable(self.cleaned_data["name"])


def _printable(name: str) -> str:
    if not name.isprintable():
        raise forms.ValidationError("Use printable characters only.")
    return name


logger = logging.getLogger(__name__)
MOST_TOKENS = 50
# Limits password guessing in an unattended browser.
MOST_WRONG_PASSWORDS = 5
WRONG_PASSWORDS = "wrong_passwords"


@require_safe
def account(request: HttpRequest) -> HttpResponse:
    return page(request)


@method_decorator(sensitive_post_parameters(), name="dispatch")
class Password(View):
    """Changes the user's own password."""

    http_method_names = ["post"]

    def post(self, request: HttpRequest) -> HttpResponse:
        user = _user(request)
        form = OwnPasswordForm(user, request.POST)
        if form.is_valid():
            return _changed(request, user, form)
        if "old_password" in form.errors:
            wrong = request.session.get(WRONG_PASSWORDS, 0) + 1
            request.session[WRONG_PASSWORDS] = wrong
            if wrong >= MOST_WRONG_PASSWORDS:
                logout(request)
                messages.error(request, "Too many wrong passwords: log in again.")
                return redirect("login")
        return page(request, password=form, status=422)


class Login(LoginView):
    """The page with the password form, and a link to the single sign-on."""

    form_class = LoginForm

    def get_redirect_url(self, request: HttpRequest | None = None) -> str:
        """The page that the user wanted; "" for the address of the site alone."""
        url: str = super().get_redirect_url()
        return "" if url == reverse("dashboard") else url

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        config = settings.CONFIG
        sign_on = config.oidc_name if config.oidc_issuer else None
        failed = self.request.GET.get("failed") == "oidc"
        return super().get_context_data(sign_on=sign_on, has_failed=failed, **more)


@require_POST
def add_token(request: HttpRequest) -> HttpResponse:
    """Create a token and show it once, on this page: a message would be stored in a cookie."""
    user = _user(request)
    form = TokenForm(request.POST)
    if form.is_valid() and user.api_tokens.filter(host="").count() >= MOST_TOKENS:
        form.add_error(None, f"You have {MOST_TOKENS} tokens, the most allowed. Revoke one first.")
    if not form.is_valid():
        return page(request, token=form, status=422)
    lives = timedelta(days=form.cleaned_data["days"])
    name = form.cleaned_data["name"]
    scopes = scopes_of(form.cleaned_data["scopes"])
    row, text = tokens.create_token(user, timezone.now(), name=name, lives=lives, scopes=scopes)
    owner = user.get_username()
    about = {"kind": "TOKEN_MADE", "owner": owner, "by": owner, "number": row.pk}
    logger.info("%s created a token of %s", owner, owner, extra=about)
    return render(request, "account/token_made.html", {"token": row, "text": text})


@require_POST
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke one of the user's own tokens."""
    if not ApiToken.objects.filter(pk=pk, user=_user(request)).delete()[0]:
        raise Http404
    messages.success(request, "The token is revoked.")
    return redirect("account")


@require_POST
def end_sessions(request: HttpRequest) -> HttpResponse:
    """End one of the user's own sessions (`session`), or all but this one (`others`)."""
    user, now = _user(request), timezone.now()
    mine = account_sessions.of_user(user, now)
    if "others" in request.POST:
        chosen = mine.exclude(session_key=request.session.session_key)
    else:
        wanted = request.POST.get("session", "")
        keys = [s.session_key for s in mine if account_sessions.public_id(s.session_key) == wanted]
        if not keys:
            raise Http404
        chosen = mine.filter(session_key__in=keys)
    count = account_sessions.end(chosen)
    about = {"kind": "SESSIONS_ENDED", "user": user.get_username()}
    logger.info("%s ended %d sessions", user.get_username(), count, extra=about)
    messages.success(request, f"{count} session{'' if count == 1 else 's'} ended.")
    return redirect("account")


def _changed(request: HttpRequest, user: User, form: OwnPasswordForm) -> HttpResponse:
    """Save the new password. It ends all other sessions, because each holds a hash of the old."""
    form.save()
    update_session_auth_hash(request, user)
    request.session.pop(WRONG_PASSWORDS, None)
    mine = account_sessions.of_user(user, timezone.now())
    account_sessions.end(mine.exclude(session_key=request.session.session_key))
    revoked = 0
    if form.cleaned_data["revoke_tokens"]:
        revoked = ApiToken.objects.filter(user=user).delete()[0]
    about = {"kind": "PASSWORD_CHANGED", "user": user.get_username()}
    logger.info("%s changed their password", user.get_username(), extra=about)
    tokens = f" {revoked} API tokens are revoked." if revoked else ""
    text = f"Your password is changed. Your other sessions are ended.{tokens}"
    messages.success(request, text)
    return redirect("account")


def page(
    request: HttpRequest,
    *,
    password: OwnPasswordForm | None = None,
    token: TokenForm | None = None,
    agent: AgentForm | None = None,
    status: int = 200,
) -> HttpResponse:
    user, now = _user(request), timezone.now()
    key = request.session.session_key
    sessions = [
        {
            "id": account_sessions.public_id(row.session_key),
            "is_this": row.session_key == key,
            "row": row,
        }
        for row in account_sessions.of_user(user, now)
    ]
    context = {
        "password_form": password or OwnPasswordForm(user),
        "token_form": token or TokenForm(),
        "agent_form": agent or AgentForm(prefix=None, auto_id="id_agent_%s"),
        "agents": agent_pages.agent_lines(user, now),
        "tokens": user.api_tokens.filter(agent=None).order_by("-created_at"),
        "sessions": sessions,
        "now": now,
    }
    return render(request, "account/account.html", context, status=status)


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)


# The agents of a user on the page of the account: make, stop, resume and remove them.

MOST_AGENTS = 20


@require_POST
def add_agent(request: HttpRequest) -> HttpResponse:
    """Make an agent and show its token once."""
    user, now = _user(request), timezone.now()
    form = AgentForm(request.POST)
    if form.is_valid():
        if Agent.objects.filter(user=user).count() >= MOST_AGENTS:
            form.add_error(None, f"You have {MOST_AGENTS} agents, the most allowed.")
        elif Agent.objects.filter(user=user, name=form.cleaned_data["name"]).exists():
            form.add_error("name", "You have an agent of this name.")
    if not form.is_valid():
        return page(request, agent=form, status=422)
    values = form.cleaned_data
    with transaction.atomic():
        agent = Agent.objects.create(
            user=user,
            name=values["name"],
            running_jobs=values["running_jobs"],
            gpu_minutes=values["gpu_minutes"],
            created_at=now,
        )
        row, text = tokens.create_token(
            user,
            now,
            name=f"agent {agent.name}",
            lives=timedelta(days=values["days"]),
            scopes=(TokenScope.READ, TokenScope.SUBMIT),
            agent=agent,
        )
    owner = user.get_username()
    about = {"kind": "TOKEN_MADE", "owner": owner, "by": owner, "number": row.pk}
    logger.info("%s created a token of an agent", owner, extra=about)
    return render(request, "account/token_made.html", {"token": row, "text": text})


@require_POST
def stop_agent(request: HttpRequest, pk: int) -> HttpResponse:
    """Refuse all requests of the agent and cancel its jobs. Operators may stop any agent."""
    user = _user(request)
    mine = Agent.objects.all() if user.is_staff else Agent.objects.filter(user=user)
    agent = get_object_or_404(mine, pk=pk)
    now = timezone.now()
    count = changes.cancel(rows.stop_agent(agent, now), user.get_username(), now)
    jobs = {0: "", 1: " 1 job is cancelled."}.get(count, f" {count} jobs are cancelled.")
    messages.success(request, f"The agent {agent.name} is stopped.{jobs}")
    return redirect("account" if agent.user_id == user.pk else "jobs")


@require_POST
def resume_agent(request: HttpRequest, pk: int) -> HttpResponse:
    agent = get_object_or_404(Agent, pk=pk, user=_user(request))
    rows.resume_agent(agent)
    messages.success(request, f"The agent {agent.name} may submit again.")
    return redirect("account")


@require_POST
def remove_agent(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the agent and delete it with its tokens. Its ended jobs stay, as the user's."""
    user = _user(request)
    agent = get_object_or_404(Agent, pk=pk, user=user)
    now = timezone.now()
    changes.cancel(rows.stop_agent(agent, now), user.get_username(), now)
    agent.delete()
    messages.success(request, f"The agent {agent.name} is removed.")
    return redirect("account")
