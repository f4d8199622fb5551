"""The agents of a user on the page of the account: make, stop, resume and remove them."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST

from gpucoord_site.accounts import views
from gpucoord_site.accounts.forms import AgentForm
from monitor.facts.accounts import TokenScope
from monitor.models import Agent
from monitor.owners.accounts.rows import tokens
from scheduler.jobs.lifecycle.rows import changes
from scheduler.limits.quotas import rows

logger = logging.getLogger(__name__)
MOST_AGENTS = 20


@require_POST
def add(request: HttpRequest) -> HttpResponse:
    """Make an agent and show its token once."""
    user, now = _user(request), timezone.now()
    form = AgentForm(request.POST)
    if form.is_valid():
        if Agent.objects.filter(user=user).count() >= MOST_AGENTS:
            form.add_error(None, f"You have {MOST_AGENTS} agents, the most allowed.")
        elif Agent.objects.filter(user=user, name=form.cleaned_data["name"]).exists():
            form.add_error("name", "You have an agent of this name.")
    if not form.is_valid():
        return views.page(request, agent=form, status=422)
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
def stop(request: HttpRequest, pk: int) -> HttpResponse:
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
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    agent = get_object_or_404(Agent, pk=pk, user=_user(request))
    rows.resume_agent(agent)
    messages.success(request, f"The agent {agent.name} may submit again.")
    return redirect("account")


@require_POST
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop the agent and delete it with its tokens. Its ended jobs stay, as the user's."""
    user = _user(request)
    agent = get_object_or_404(Agent, pk=pk, user=user)
    now = timezone.now()
    changes.cancel(rows.stop_agent(agent, now), user.get_username(), now)
    agent.delete()
    messages.success(request, f"The agent {agent.name} is removed.")
    return redirect("account")


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)
