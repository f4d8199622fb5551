"""Wording: why a request to a model waits, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from scheduler.facts.prompts import Wait, WaitCode

# Without a known time, clients ask again after this many seconds.
ASK_AGAIN_S = 10


def sentence(wait: Wait) -> str:
    """Such as "all 2 instances busy, position 7"."""
    place = f"position {wait.position}"
    if wait.code is WaitCode.MODEL_BOOTS:
        return f"model boots, {_ready(wait.ready_in_s)}, {place}"
    if wait.code is WaitCode.MODEL_DISABLED:
        return f"an operator has disabled the model, {place}"
    if wait.code is WaitCode.MODEL_WAITS_FOR_GPU:
        return f"model waits for a free GPU, {place}"
    if wait.code is WaitCode.MODEL_ELSEWHERE:
        return f"another host runs the model, {place}"
    if wait.code is WaitCode.PLACE_RESERVED:
        return f"the free place is kept for other users of the model, {place}"
    if wait.code is WaitCode.MODEL_FAILED:
        return f"the last start of the model failed ({wait.reason}); it is tried again, {place}"
    if wait.code is WaitCode.BATCH_EXCLUSIVE:
        return f"{wait.reason} has the GPUs of the model for itself, {place}"
    if wait.instances == 1:
        return f"the only instance is busy, {place}"
    return f"all {wait.instances} instances busy, {place}"


def elsewhere(model: str, pages: Mapping[str, str], *, is_passed_on: bool = False) -> str:
    """Where a model runs, and where to send requests. pages: of each host that runs it, the page of
    the model there; "" = other hosts cannot reach its pages.
    """
    hosts = " and ".join(pages)
    if is_passed_on:
        return f"{model} runs on {hosts}. The endpoint of this host passes requests on."
    known = [page for page in pages.values() if page]
    if not known:
        return f"{model} runs on {hosts}. Send requests to the endpoint for models of that host."
    named = " and ".join(known)
    return f"{model} runs on {hosts}. Send requests to the endpoint there, which {named} names."


def _ready(seconds: float | None) -> str:
    if seconds is None:
        return "ready soon"
    return "ready now" if seconds < 1 else f"ready in ~{ceil(seconds)} s"


def retry_after_s(wait: Wait | None) -> int:
    """Seconds after which a client should ask again."""
    if wait is None or wait.ready_in_s is None:
        return ASK_AGAIN_S
    return max(1, ceil(wait.ready_in_s))
