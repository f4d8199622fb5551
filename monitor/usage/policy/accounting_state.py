"""Accounting state as text, with which the next sampler process continues without a gap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from monitor.facts.readings import OwnerSource
from monitor.facts.usage import GpuMark, UseSource
from monitor.usage.policy.accounting import (
    MinuteSums,
    ProcessRecord,
    ProcessUses,
    UsageAmounts,
    UsePolicy,
)
from monitor.usage.policy.attribution import EnergyMeter

VERSION = 1


def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_AMOUNTS, _USE, _METER, _MARK = map(_names, (UsageAmounts, ProcessRecord, EnergyMeter, GpuMark))
_amounts, _use, _meter, _mark = (attrgetter(*names) for names in (_AMOUNTS, _USE, _METER, _MARK))


def dumps(
    probe: str, uses: ProcessUses, marks: Mapping[str, GpuMark], is_written: bool = False
) -> str:
    """Open records, completed records that are not stored yet, and the driver's cursors."""
    ended, minutes = ([], []) if is_written else (uses.ended, uses.minutes)
    records = [*uses.open.values(), *ended]
    numbers = {id(use): number for number, use in enumerate(records)}
    body = {
        "version": VERSION,
        "probe": probe,
        "names": [_USE, _AMOUNTS, _METER, _MARK],
        "swept_at": uses.swept_at,
        "uses": [_use(use) for use in records],
        "open": len(uses.open),
        "ended": len(ended),
        "minutes": [(numbers[id(m.use)], m.t, m.amounts) for m in minutes],
        "meters": {uuid: _meter(meter) for uuid, meter in uses.meters.items()},
        "marks": {uuid: _mark(mark) for uuid, mark in marks.items()},
    }
    return json.dumps(body, separators=(",", ":"), default=_plain)


def loads(
    text: str, probe: str, policy: UsePolicy
) -> tuple[ProcessUses, dict[str, GpuMark]] | None:
    """None if another probe, or a version with other fields, wrote the text."""
    body = json.loads(text) if text else {}
    if body.get("version") != VERSION or body.get("probe") != probe:
        return None
    if body["names"] != [list(names) for names in (_USE, _AMOUNTS, _METER, _MARK)]:
        return None
    records = _read_uses(body)
    count = body["open"]
    uses = ProcessUses(
        policy=policy,
        swept_at=_time(body["swept_at"]),
        open={use.on: use for use in records[:count]},
        ended=records[count : count + body["ended"]],
        minutes=[
            MinuteSums(records[n], t, UsageAmounts(*amounts)) for n, t, amounts in body["minutes"]
        ],
        meters={uuid: _read_meter(row) for uuid, row in body["meters"].items()},
    )
    return uses, {uuid: _read_mark(row) for uuid, row in body["marks"].items()}


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else _amounts(value)


def _time(value: float | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(value, UTC)


def _read_uses(body: Mapping[str, Any]) -> list[ProcessRecord]:
    """Each record once: an ended one may also have minutes that are not stored yet."""
    records: list[ProcessRecord] = []
    for row in _rows(body["uses"], _USE):
        for name in ("first_seen_at", "last_seen_at", "ended_at", "created_at"):
            row[name] = _time(row[name])
        for name in ("total", "minute"):
            row[name] = UsageAmounts(*row[name])
        sources = {
            "source": UseSource(row["source"]),
            "owner_source": OwnerSource(row["owner_source"]),
        }
        records.append(ProcessRecord(**{**row, **sources}))
    return records


def _rows(rows: Iterable[Iterable[Any]], names: tuple[str, ...]) -> Iterable[dict[str, Any]]:
    return (dict(zip(names, row, strict=True)) for row in rows)


def _read_meter(row: Iterable[Any]) -> EnergyMeter:
    values = dict(zip(_METER, row, strict=True))
    times = {name: _time(values[name]) for name in ("at", "noted_at")}
    paid = {int(pid): busy_s for pid, busy_s in values["paid"].items()}
    return EnergyMeter(**{**values, **times, "paid": paid})


def _read_mark(row: Iterable[Any]) -> GpuMark:
    values = dict(zip(_MARK, row, strict=True))
    accounts = {int(pid): tuple(sums) for pid, sums in values["accounts"].items()}
    return GpuMark(**{**values, "accounts": accounts})
