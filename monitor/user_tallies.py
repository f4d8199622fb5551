"""Rows: what each person has used of a host's GPUs so far; it stays when the uses are pruned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from monitor import tallies
from monitor.models import ProcessUse
from monitor.policy.uses import Use

QUANTITIES = ("sm_s", "held_s", "known_s", "joules")
# Whose processes nobody can tell.
NOBODY = "(unknown)"
_SIMULATED = "simulated "


def count(host: str, uses: Sequence[Use], *, simulated: bool) -> None:
    """Add how much the uses have grown over their rows, which are still as they were."""
    grown: dict[tuple[str, str], float] = defaultdict(float)
    stored = _stored(host, uses)
    for use in uses:
        before = stored.get((use.gpu_uuid, use.pid, use.start_ticks), {})
        person = use.job_owner or use.user or NOBODY
        for quantity in QUANTITIES:
            now = getattr(use.total, quantity)
            if now is not None:
                name = _SIMULATED * simulated + quantity
                grown[name, person] += max(0.0, now - (before.get(quantity) or 0.0))
    tallies.add_all(host, grown)


def totals(quantity: str) -> list[tuple[str, str, bool, float]]:
    """(host, person, simulated, how much)."""
    return [
        (row.host, row.subject, simulated, row.value)
        for simulated in (False, True)
        for row in tallies.of(_SIMULATED * simulated + quantity)
    ]


def _stored(host: str, uses: Sequence[Use]) -> dict[tuple[str, int, int], dict[str, float | None]]:
    rows = ProcessUse.objects.filter(host=host, pid__in={use.pid for use in uses})
    return {
        (gpu, pid, ticks): dict(zip(QUANTITIES, amounts, strict=True))
        for gpu, pid, ticks, *amounts in rows.values_list(
            "gpu_id", "pid", "start_ticks", *QUANTITIES
        )
    }
