"""Facts: who waits for GPUs, as far as freeing some would help them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A job that waits because others hold what it needs; nothing else keeps it from starting.

    gpus: how many it asks for. gpu_uuids: which would do, () = any. share_pct: the share of the
    machine that its owner is entitled to, None = as the policy says.
    """

    owner: str
    since: datetime
    job_ref: str = ""
    gpus: int = 1
    gpu_uuids: tuple[str, ...] = ()
    share_pct: float | None = None
