"""Policy: divides the time of one GPU among its holders, so that all parts add up.

Each instant of a GPU belongs to those who hold it, in equal parts. The time that it computed
counts as used by the processes that computed. The rest of the held time counts for those who
used less than their part, in proportion to what they left unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

Span = tuple[float, float]


class Holder(Struct):
    """One owner on the GPU in a step: `spans` with processes, `claims` of jobs; seconds.

    seen_s: of the held seconds, those in which the process was read, whatever is known of its use.
    None: not known.
    """

    spans: list[Span] = field(default_factory=list)
    claims: list[Span] = field(default_factory=list)
    held_s: float = 0.0
    known_s: float = 0.0
    sm_s: float = 0.0
    seen_s: float | None = None

    def without(self, seconds: float) -> float:
        """The part of the held time, 0 to 1, that is not among these seconds of it."""
        return 1 - min(1.0, seconds / self.held_s) if self.held_s > 0 else 0.0


class Split(Struct):
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

    watched: seconds with readings; all other time is unknown. busy_s: seconds in which the device
    computed. What it did without a visible process is unknown, not free.
    """
    known_s = max((h.known_s for h in holders.values()), default=0.0)
    watched = min(length, max(watched, known_s))
    parts = presence(holders)
    blind = _blind(length, watched, holders, parts)
    seen = {
        owner: _Seen(
            min(holder.sm_s, watched),
            max(0.0, parts[owner][0] - blind[owner][0]),
            max(0.0, parts[owner][1] - blind[owner][1]),
            _dark(holder, parts[owner][0], blind[owner][0]),
        )
        for owner, holder in holders.items()
    }
    held = min(watched, sum(part.process + part.claim for part in seen.values()))
    owners = _owners(held, seen)
    free = watched - held
    hidden = min(free, max(0.0, (busy_s or 0.0) - held)) if busy_s is not None else 0.0
    hidden = hidden if hidden > 0.01 * length else 0.0
    whole = Split(unknown=length - watched + hidden, free=free - hidden)
    for owner, part in owners.items():
        whole.used += part.used
        whole.idle += part.idle
        whole.empty += part.empty
        whole.unknown += part.unknown
        part.unknown += sum(blind[owner])
    return whole, owners


def _blind(
    length: float,
    watched: float,
    holders: dict[str | None, Holder],
    parts: dict[str | None, tuple[float, float]],
) -> dict[str | None, tuple[float, float]]:
    """The unwatched seconds of each owner, with a process and with only a claim.

    The sums of a step do not tell when it was unwatched, but `seen_s` tells how much of that was in
    the time of a process. Without it, unknown use counts as unwatched; if all use is unknown, the
    process gets an even part, as a claim does.
    """
    missing, process = length - watched, sum(p for p, _ in parts.values())
    rest = length - process
    if missing <= 0:
        return dict.fromkeys(holders, (0.0, 0.0))
    unseen = {}
    for owner, holder in holders.items():
        seen_s = holder.known_s if holder.seen_s is None else holder.seen_s
        part = holder.without(seen_s) if seen_s > 0 else missing / length
        unseen[owner] = parts[owner][0] * part
    total = sum(unseen.values())
    # No more than was unwatched, and no less than what the time without processes leaves.
    fitting = min(missing, process, max(total, missing - rest))
    if total > fitting:
        unseen = {owner: seconds * fitting / total for owner, seconds in unseen.items()}
    elif total < fitting:
        more = min(1.0, (fitting - total) / (process - total))
        unseen = {o: seconds + (parts[o][0] - seconds) * more for o, seconds in unseen.items()}
    outside = (missing - fitting) / rest if rest > 0 else 0.0
    return {owner: (unseen[owner], claim * outside) for owner, (_, claim) in parts.items()}


def _dark(holder: Holder, process: float, blind: float) -> float:
    """The watched seconds with a process of unknown use."""
    if holder.seen_s is None:
        return max(0.0, process * holder.without(holder.known_s) - blind)
    return process * (holder.without(holder.known_s) - holder.without(holder.seen_s))


class _Seen(NamedTuple):
    """Watched seconds of one owner; dark: of those with a process, those with unknown use."""

    used: float
    process: float
    claim: float
    dark: float


def _owners(held: float, seen: dict[str | None, _Seen]) -> dict[str | None, Split]:
    """The parts of the `held` watched seconds by owner."""
    total = sum(min(part.used, held) for part in seen.values())
    fit = min(1.0, held / total) if total > 0 else 1.0
    used = {owner: min(part.used, held) * fit for owner, part in seen.items()}
    total *= fit
    obscure = sum(part.dark for part in seen.values())
    # Rounding may put the sum a hair above the whole.
    unknown = min(obscure, max(0.0, held - total))
    scale = unknown / obscure if unknown else 0.0
    lit = {o: max(0.0, part.process - part.dark - used[o]) for o, part in seen.items()}
    left = sum(lit.values()) + sum(part.claim for part in seen.values())
    share = max(0.0, held - total - unknown) / left if left else 0.0
    return {
        owner: Split(used[owner], lit[owner] * share, part.claim * share, part.dark * scale)
        for owner, part in seen.items()
    }


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
