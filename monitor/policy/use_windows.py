"""The series of all who are on GPUs, fed with each look of the controller."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from monitor.policy.use_series import HORIZON_S, Series, Used

# (GPU, pid, start ticks)
Key = tuple[str, int, int | None]
NOTHING = Used(0, 0, 0, 0, 0, 0)
# So much at once was not used since the look before: the row tells of an older stay.
MOST_AT_ONCE_S = 60.0
FORGET_S = 900.0


@dataclass(frozen=True, slots=True)
class Total:
    """What a process used of a GPU in all, up to `at` (epoch seconds)."""

    at: float
    used: Used


@dataclass(frozen=True, slots=True)
class Present:
    """A process that is on a GPU now, and with whom it is counted together."""

    key: Key
    group: str
    sm_pct: float | None
    memory_bytes: int | None
    created_t: float | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What a process used in some seconds before the first look, up to `at`."""

    key: Key
    group: str
    at: float
    used: Used


@dataclass(slots=True)
class Windows:
    """Series by process and by group. Looks further apart than `gap_s` tell nothing between."""

    gap_s: float = 15.0
    processes: dict[Key, Series] = field(default_factory=dict)
    groups: dict[str, Series] = field(default_factory=dict)
    looked_t: float | None = None
    _totals: dict[Key, Used] = field(default_factory=dict)
    _missing: dict[Key, float] = field(default_factory=dict)

    def recall(self, past: Iterable[Past], totals: Mapping[Key, Total]) -> None:
        """Build up what was before the first look, from rows of minutes."""
        by_time: dict[tuple[str, float], list[Used]] = {}
        for piece in sorted(past, key=lambda piece: piece.at):
            self._series(piece.key).add(piece.at, piece.used.span_s, piece.used)
            by_time.setdefault((piece.group, piece.at), []).append(piece.used)
        for (group, at), together in sorted(by_time.items(), key=lambda item: item[0][1]):
            self._add_to_group(group, at, together)
        self._totals = {key: total.used for key, total in totals.items()}

    def feed(
        self,
        t: float,
        present: Iterable[Present],
        totals: Mapping[Key, Total],
        readable: Collection[str],
    ) -> None:
        """One look at `t`: by the sums in `totals`, and where there is none by what is seen.

        Who is on none of the `readable` GPUs is known to use nothing there.
        """
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        together: dict[str, list[tuple[float, Used]]] = {}
        here: set[Key] = set()
        groups: set[str] = set()
        for process in present:
            here.add(process.key)
            groups.add(process.group)
            total = totals.get(process.key)
            if total is not None:
                at, used = total.at, self._since_last(process.key, total.used)
            else:
                at, used = t, self._seen(process, t, passed)
            series = self._series(process.key)
            if used.held_s > 0 or not series.points:
                series.add(at, used.span_s, used)
                together.setdefault(process.group, []).append((at, used))
        if 0 < passed <= self.gap_s:
            self._note_absent(t, passed, readable, groups)
        for group, found in together.items():
            self._add_to_group(group, max(at for at, _ in found), [used for _, used in found])
        self._forget(t, here, groups)
        self.looked_t = t

    def _since_last(self, key: Key, total: Used) -> Used:
        before = self._totals.get(key)
        self._totals[key] = total
        if before is None:
            return total if total.held_s <= MOST_AT_ONCE_S else NOTHING
        held = max(0.0, total.held_s - before.held_s)
        return Used(
            held,
            max(0.0, total.sm_s - before.sm_s),
            held,
            max(0.0, total.known_s - before.known_s),
            max(0.0, total.memory_byte_s - before.memory_byte_s),
            max(0.0, total.memory_known_s - before.memory_known_s),
        )

    def _seen(self, process: Present, t: float, passed: float) -> Used:
        """Taken from one look alone: as if it had been so since the look before."""
        known = self.processes.get(process.key)
        if known is None or not known.points:
            age = passed if process.created_t is None else t - process.created_t
            passed = 0.0 if process.created_t is None else max(0.0, min(age, passed))
        if passed <= 0 or passed > self.gap_s:
            return NOTHING
        pct, memory = process.sm_pct, process.memory_bytes
        return Used(
            passed,
            0.0 if pct is None else pct / 100 * passed,
            passed,
            0.0 if pct is None else passed,
            0.0 if memory is None else memory * passed,
            0.0 if memory is None else passed,
        )

    def _series(self, key: Key) -> Series:
        found = self.processes.get(key)
        if found is None:
            found = self.processes[key] = Series()
        return found

    def _add_to_group(self, group: str, at: float, together: list[Used]) -> None:
        series = self.groups.setdefault(group, Series())
        series.add(at, max(used.span_s for used in together), joined(together))

    def _note_absent(
        self, t: float, passed: float, readable: Collection[str], there: Collection[str]
    ) -> None:
        nothing = Used(passed, 0.0, passed, passed, 0.0, passed)
        for group, series in self.groups.items():
            if group not in there and group.partition("|")[0] in readable:
                series.add(t, passed, nothing)

    def _forget(self, t: float, here: set[Key], groups: Collection[str]) -> None:
        """A GPU that is silent for a while makes nobody's past unknown."""
        for key in [key for key in self.processes if key not in here]:
            if t - self._missing.setdefault(key, t) > FORGET_S:
                del self.processes[key], self._missing[key]
                self._totals.pop(key, None)
        for key in here & self._missing.keys():
            del self._missing[key]
        for group in [g for g, s in self.groups.items() if g not in groups and _is_over(s, t)]:
            del self.groups[group]


def _is_over(series: Series, t: float) -> bool:
    """Nothing was used in all the time that is kept."""
    return series.end < t - HORIZON_S or (
        series.span_s > HORIZON_S and series.over(t - HORIZON_S).memory_byte_s == 0
    )


def joined(together: list[Used]) -> Used:
    """Several processes as one: there while one is, known while all are; never above the GPU."""
    if len(together) == 1:
        return together[0]
    held = max(used.held_s for used in together)
    there = [used for used in together if used.held_s > 0]
    known = min((used.known_s / used.held_s for used in there), default=0.0) * held
    memory_known = min((used.memory_known_s / used.held_s for used in there), default=0.0) * held
    return Used(
        max(used.span_s for used in together),
        min(sum(used.sm_s for used in together), held),
        held,
        min(held, known),
        sum(used.memory_byte_s for used in together),
        min(held, memory_known),
    )
