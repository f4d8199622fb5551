"""Policy: divides the time of one GPU among its holders, so that all parts add up.

Each instant of a GPU belongs to those who hold it, in equal parts. The time that it computed
counts as used by the processes that computed. The rest of the held time counts for those who
used less than their part, in proportion to what they left unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Span = tuple[float, float]


@dataclass(slots=True)
class Holder:
    """One owner on the GPU in a step: `spans` with processes, `claims` of jobs; seconds."""

    spans: list[Span] = field(default_factory=list)
    claims: list[Span] = field(default_factory=list)
    held_s: float = 0.0
    known_s: float = 0.0
    sm_s: float = 0.0


@dataclass(slots=True)
class Split:
    """Seconds of one owner, or of a whole GPU: see GpuHours."""

    used: float = 0.0
    idle: float = 0.0
    empty: float = 0.0
    unknown: float = 0.0
    free: float = 0.0

    @property
    def held(self) -> float:
        return self.used + self.idle + self.empty + self.unknown

    def add(self, other: Split) -> None:
        self.used += other.used
        self.idle += other.idle
        self.empty += other.empty
        self.unknown += other.unknown
        self.free += other.free


def split(
    length: float, watched: float, busy_s: float | None, holders: dict[str | None, Holder]
) -> tuple[Split, dict[str | None, Split]]:
    """The parts of `length` seconds of a GPU, in all and by owner.

    watched: seconds with readings. busy_s: seconds in which the device computed. What it did
    without a visible process is unknown, not free.
    """
    known_s = max((h.known_s for h in holders.values()), default=0.0)
    watched = min(length, max(watched, known_s))
    parts = presence(holders)
    held = sum(process + claim for process, claim in parts.values())
    if held > watched:
        factor = watched / held if held else 0.0
        parts = {owner: (p * factor, c * factor) for owner, (p, c) in parts.items()}
        held = watched
    owners, unknown = _owners(held, watched, holders, parts)
    free = watched - held
    hidden = min(free, max(0.0, (busy_s or 0.0) - held)) if busy_s is not None else 0.0
    hidden = hidden if hidden > 0.01 * length else 0.0
    whole = Split(unknown=length - watched + hidden + unknown, free=free - hidden)
    for part in owners.values():
        whole.used += part.used
        whole.idle += part.idle
        whole.empty += part.empty
    return whole, owners


def _owners(
    held: float,
    watched: float,
    holders: dict[str | None, Holder],
    parts: dict[str | None, tuple[float, float]],
) -> tuple[dict[str | None, Split], float]:
    """By owner; and the unknown seconds of all of them together."""
    used, dark = {}, {}
    for owner, holder in holders.items():
        used[owner] = min(holder.sm_s, held)
        dark[owner] = parts[owner][0] * (1 - _known(holder, watched))
    total, obscure = sum(used.values()), sum(dark.values())
    if total > held:
        used = {owner: value * held / total for owner, value in used.items()}
        total = held
    unknown = min(obscure, held - total)
    scale = unknown / obscure if unknown else 0.0
    left, lit = 0.0, {}
    for owner, (process, claim) in parts.items():
        lit[owner] = max(0.0, process - dark[owner] - used[owner])
        left += lit[owner] + claim
    share = max(0.0, held - total - unknown) / left if left else 0.0
    splits = {
        owner: Split(used[owner], lit[owner] * share, claim * share, dark[owner] * scale)
        for owner, (_, claim) in parts.items()
    }
    return splits, unknown


def _known(holder: Holder, watched: float) -> float:
    """The part of the processes' time with measured use, 0 to 1."""
    if holder.known_s >= holder.held_s:
        return 1.0
    held = min(holder.held_s, max(watched * max(1, len(holder.spans)), holder.known_s))
    return min(1.0, holder.known_s / held) if held > 0 else 1.0


def presence(holders: dict[str | None, Holder]) -> dict[str | None, tuple[float, float]]:
    """Seconds that belong to each owner, with a process there and with only a claim."""
    if len(holders) == 1:
        ((owner, holder),) = holders.items()
        process = covered(holder.spans)
        return {owner: (process, covered([*holder.spans, *holder.claims]) - process)}
    marks: list[tuple[float, int, int, str | None]] = []
    for owner, holder in holders.items():
        for kind, spans in enumerate((holder.spans, holder.claims)):
            for begin, end in spans:
                if end > begin:
                    marks += ((begin, 1, kind, owner), (end, -1, kind, owner))
    return _swept(sorted(marks, key=lambda mark: mark[0]), holders)


def _swept(
    marks: Sequence[tuple[float, int, int, str | None]], owners: Iterable[str | None]
) -> dict[str | None, tuple[float, float]]:
    there = {owner: [0, 0] for owner in owners}
    sums = {owner: [0.0, 0.0] for owner in there}
    before = marks[0][0] if marks else 0.0
    for at, change, kind, owner in marks:
        if at > before:
            present = [name for name, (p, c) in there.items() if p or c]
            for name in present:
                sums[name][0 if there[name][0] else 1] += (at - before) / len(present)
            before = at
        there[owner][kind] += change
    return {owner: (p, c) for owner, (p, c) in sums.items()}


def covered(spans: Iterable[Span]) -> float:
    """The length of the union of the spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        begin = max(begin, reached)
        if end > begin:
            total += end - begin
            reached = end
    return total
