"""The agents of a user, as the page of the account lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from monitor.models import Agent
from scheduler.limits.quotas import rows


@dataclass(frozen=True, slots=True)
class AgentLine:
    """A row of the page. minutes: GPU-minutes of today."""

    agent: Agent
    running: int
    minutes: float
    expires_at: datetime | None


def lines(user: User, now: datetime) -> Sequence[AgentLine]:
    agents = list(Agent.objects.filter(user=user).prefetch_related("tokens").order_by("name"))
    uses = rows.agent_uses([agent.pk for agent in agents], now)
    return [
        AgentLine(
            agent,
            uses[agent.pk].running,
            uses[agent.pk].spent,
            max(
                (token.expires_at for token in agent.tokens.all() if token.expires_at), default=None
            ),
        )
        for agent in agents
    ]
