"""Policy: limits of prompts: how long they may wait and run, how many a user may send a day."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from monitor.facts.thresholds import threshold
from scheduler.facts.people import Quota
from scheduler.facts.prompts import DayUse, NewPrompt

MIB = 1024**2
# MiB of messages and parameters of a user's waiting prompts, as stored, except of operators.
WAITING_MIB = 32.0
# Hourly sums of requests and tokens of each user and model are kept for this time.
USE_KEPT = timedelta(days=400)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPolicy:
    """Requests to language models: waiting, time limits and retention."""

    # fmt: off
    waiting: int = threshold(500, "Waiting requests of a user", ge=1, le=100_000,
        help="Prompts and requests of the endpoint together. Further ones get 429.")
    wait_s: float = threshold(300.0, "Longest wait of the endpoint", unit="s", ge=1, le=3600,
        help="A request without an instance after this time gets 503 with Retry-After. "
             "Prompts of the queue wait without a limit.")
    stall_s: float = threshold(120.0, "Stalled after", unit="s", ge=1, le=3600,
        help="An instance that sends nothing for this time within a stream has failed with the "
             "request. Other answers may be silent for the longest answer.")
    answer_s: float = threshold(1800.0, "Longest answer", unit="s", ge=10, le=86_400,
        help="From the start of a request on an instance to its last byte.")
    days: float = threshold(30.0, "Retention of prompts", unit="d", ge=0.01, le=3650,
        help="Prompts with their answers are deleted this long after their end.")
    # fmt: on


def size_of(new: NewPrompt) -> int:
    """Bytes of the prompt as it is stored: JSON in ASCII."""
    return len(json.dumps(new.messages)) + len(json.dumps(dict(new.parameters)))


def over_quota(quota: Quota, used: DayUse) -> str:
    """Why the user may send no further request today, in a sentence; "" = it may."""
    if quota.prompts is not None and used.requests >= quota.prompts:
        return (
            f"You have sent {used.requests} requests to models today;"
            f" your quota allows {quota.prompts} a day."
        )
    if quota.prompt_tokens is not None and used.tokens >= quota.prompt_tokens:
        return (
            f"Your requests to models have used {used.tokens} tokens today;"
            f" your quota allows {quota.prompt_tokens} a day."
        )
    return ""
