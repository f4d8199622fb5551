"""Policy: a blocker with its sentences, as it is stored with its job and given out by REST."""

from __future__ import annotations

from typing import Any

from scheduler.blockers.policy.next_steps import next_step
from scheduler.blockers.wording import headline, jobs, lower_first, text
from scheduler.facts.blockers import Blocker, to_row


def body(blocker: Blocker) -> dict[str, Any]:
    """A blocker as it is stored with its job, and given out by REST."""
    return to_row(blocker) | {
        "text": text(blocker),
        "headline": headline(blocker),
        "next_step": next_step(blocker),
        "available": available(blocker),
        "holder": holder(blocker),
        "job": blocker.job,
    }


def available(blocker: Blocker) -> str | None:
    """The available resource in REST answers."""
    if blocker.available is not None or blocker.gpu is None:
        return blocker.available
    return f"GPU {blocker.gpu}"


def holder(blocker: Blocker) -> str | None:
    """The holder in REST answers."""
    if blocker.array is not None:
        return f"array {blocker.array}"
    if blocker.holder is not None:
        return ", ".join([blocker.holder, *(f"job {job}" for job in blocker.jobs)])
    return lower_first(jobs(blocker)) or None
