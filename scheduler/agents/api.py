"""REST: the agent of a request."""

from __future__ import annotations

from django.http import HttpRequest
from ninja.errors import HttpError

from monitor.models import Agent
from scheduler.models import Job


def agent_of(request: HttpRequest) -> Agent | None:
    """The agent whose token the request has."""
    agent: Agent | None = getattr(request, "agent", None)
    return agent


def check_own(request: HttpRequest, job: Job) -> None:
    """Raises HttpError when an agent would act on a job that it did not submit."""
    agent = agent_of(request)
    if agent is not None and job.agent_id != agent.pk:
        raise HttpError(403, "An agent may cancel its own jobs only.")
