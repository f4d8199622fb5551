"""Accounting state as text, with which the next sampler process continues without a gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import TypeAdapter

from monitor.facts.usage import GpuMark
from monitor.usage.policy.accounting import (
    MinuteSums,
    ProcessRecord,
    ProcessUses,
    UsageAmounts,
    UsePolicy,
)
from monitor.usage.policy.attribution import EnergyMeter

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedState:
    """records: each once, first the `open` ones, then the `ended` ones; the minutes name them."""

    version: int
    probe: str
    swept_at: datetime | None
    records: list[ProcessRecord]
    open: int
    ended: int
    minutes: list[tuple[int, int, UsageAmounts]]
    meters: dict[str, EnergyMeter]
    marks: dict[str, GpuMark]


_STATE = TypeAdapter(CarriedState)


def dumps(
    probe: str, uses: ProcessUses, marks: Mapping[str, GpuMark], is_written: bool = False
) -> str:
    """Open records, completed records that are not stored yet, and the driver's cursors."""
    ended, minutes = ([], []) if is_written else (uses.ended, uses.minutes)
    records = [*uses.open.values(), *ended]
    numbers = {id(use): number for number, use in enumerate(records)}
    state = CarriedState(
        version=VERSION,
        probe=probe,
        swept_at=uses.swept_at,
        records=records,
        open=len(uses.open),
        ended=len(ended),
        minutes=[(numbers[id(m.use)], m.t, m.amounts) for m in minutes],
        meters=uses.meters,
        marks=dict(marks),
    )
    return _STATE.dump_json(state, exclude_defaults=True).decode()


def loads(
    text: str, probe: str, policy: UsePolicy
) -> tuple[ProcessUses, dict[str, GpuMark]] | None:
    """None if there is no text, or if another probe or version wrote it. Raises ValueError."""
    state = _STATE.validate_json(text) if text else None
    if state is None or (state.version, state.probe) != (VERSION, probe):
        return None
    records, count = state.records, state.open
    uses = ProcessUses(
        policy=policy,
        swept_at=state.swept_at,
        open={use.on: use for use in records[:count]},
        ended=records[count : count + state.ended],
        minutes=[MinuteSums(records[n], t, amounts) for n, t, amounts in state.minutes],
        meters=state.meters,
    )
    return uses, state.marks
