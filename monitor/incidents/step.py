"""Steps: apply the incident rules to the use of the last two hours, and find recurring use.

The buffers in memory are rebuilt from rows by each new process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Sum

from monitor.facts.accounts import ClaimFact, Demand
from monitor.facts.incidents import CPU_HOG
from monitor.facts.readings import CpuProcess, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import rows as incident_rows
from monitor.incidents.policy.findings import (
    Booking,
    BookingPolicy,
    EmptyBookingTracker,
    Finding,
    GpuTimePolicy,
    MemoryPolicy,
    bookings,
    build,
    exemptions_of_policy,
    group_processes,
    presences,
    readable_gpus,
)
from monitor.incidents.policy.lifecycle import Verdict, judge
from monitor.incidents.policy.patterns import (
    LOOK_BACK,
    PatternPolicy,
    Place,
    UsagePattern,
    WatchedTime,
    in_order,
    of_user,
    sentence,
)
from monitor.incidents.policy.usage_series import (
    UsageBuffers,
    UsageMinute,
    minutes_of_movers,
    several_gpus,
)
from monitor.incidents.rules import cpu as cpu_rules
from monitor.incidents.rules import evaluate as evaluate_rules
from monitor.incidents.rules.cpu import CpuWindows
from monitor.incidents.rules.evaluate import IncidentPolicies, Rule, RunRule
from monitor.incidents.wording import gpu_names
from monitor.models import Gpu, HostHour, Pattern, ProcessHour
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds

# Past use by several GPUs in turn is read for the window of its rule and this time before.
TURNS_MORE_S = 120.0


class IncidentStep:
    """The incidents of one host. `gap_s`: a longer time between two snapshots counts as unknown."""

    def __init__(
        self,
        host: str,
        gap_s: float = 15.0,
        look_at_cpus: Callable[[], Sequence[CpuProcess]] | None = None,
    ) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, "incidents")
        self._look_at_cpus = look_at_cpus
        self._cpus = CpuWindows()
        self._windows = UsageBuffers(gap_s=gap_s)
        self._empty_bookings = EmptyBookingTracker(gap_s)
        self._seq: int | None = None

    def judge(
        self,
        snapshot: Snapshot | None,
        demand: Sequence[Demand],
        now: datetime,
        leaders: Collection[int] = (),
        shares: Mapping[str, float] | None = None,
    ) -> Verdict | None:
        """Apply the rules to the newest snapshot, inside the caller's transaction.

        `demand`: the waiting jobs. `leaders`: the first processes of all jobs of this host.
        `shares`: the fair share of the machine (%) of each user on GPUs, while a job waits.
        """
        if snapshot is None or (snapshot.problem and not snapshot.gpus):
            return None
        policies = self._policies(now)
        claims = bookings(snapshots.open_claims(self._host))
        if self._seq is None:
            self._recall(claims, policies, now)
        groups = group_processes(snapshot.processes, claims, policies.hogs, policies.exempt)
        if snapshot.seq != self._seq:
            account = incident_rows.recent_usage(self._host, now)
            gone = group_processes(account.gone, claims, policies.hogs, policies.exempt)
            self._windows.feed(
                snapshot.at.timestamp(),
                presences(groups),
                account.totals,
                readable_gpus(snapshot),
                presences(gone),
            )
            self._empty_bookings.look(snapshot, claims)
        self._seq = snapshot.seq
        inputs = build(snapshot, groups, self._windows, self._empty_bookings, demand, shares)
        stored = incident_rows.stored(self._host, self._isolation.converter(now))
        going_on = {incident.name for incident in stored}
        run = self._runner(now)
        findings, failed = evaluate_rules.findings(inputs, policies, going_on, run)
        cpu_hogs = run(CPU_HOG, lambda: self._cpu_hogs(snapshot, policies, leaders, now))
        failed |= {CPU_HOG} if cpu_hogs is None else set()
        findings += cpu_hogs or []
        present = evaluate_rules.present_keys(inputs) | {
            f"cpu|{name}" for name in self._cpus.people
        }
        unsure = evaluate_rules.undecided(inputs, policies, going_on, failed)
        unsure |= cpu_rules.undecided(self._cpus, inputs.t)
        alert = policies.hogs.alert_on_hog
        verdict = judge(findings, stored, present, demand, now, unsure, alert_on_hog=alert)
        incident_rows.apply(verdict, self._host, now, self._isolation)
        return verdict

    def _runner(self, now: datetime) -> RunRule:
        """Runs a rule; one that fails is reported, and the other rules judge."""

        def run(rule: str, action: Rule) -> list[Finding] | None:
            done = self._isolation.convert([action], lambda _: f"rule {rule}", _listed, now)
            return done[0][1] if done else None

        return run

    def _cpu_hogs(
        self,
        snapshot: Snapshot,
        policies: IncidentPolicies,
        leaders: Collection[int],
        now: datetime,
    ) -> list[Finding]:
        """Scan all processes of the host at intervals, and only while its CPUs are busy."""
        if self._look_at_cpus is None or snapshot.probe == "simulated":
            return []
        t, last = snapshot.at.timestamp(), self._cpus.looked_t
        if last is None or t - last >= cpu_rules.LOOK_EVERY_S:
            if cpu_rules.is_scan_needed(snapshot.host.cpu_pct, policies.hogs):
                count = snapshot.host.cpu_count or 1
                self._cpus.look(t, self._look_at_cpus(), count, leaders)
            else:
                self._cpus.note_quiet(t)
            incident_rows.store_cpu_scan(self._host, cpu_rules.dumps(self._cpus), now)
        return list(cpu_rules.findings(self._cpus, t, policies.hogs, policies.exempt))

    def _policies(self, now: datetime) -> IncidentPolicies:
        force = thresholds.ThresholdsInForce()
        hogs = force.of(GpuTimePolicy)
        return IncidentPolicies(
            hogs=hogs,
            memory=force.of(MemoryPolicy),
            claims=force.of(BookingPolicy),
            exempt=(*exemptions_of_policy(hogs), *incident_rows.exemptions(now)),
        )

    def _recall(
        self, claims: Mapping[Booking, ClaimFact], policies: IncidentPolicies, now: datetime
    ) -> None:
        """Rebuild the buffers. Use by a job stays with the job, even if its booking has ended."""
        empty_bookings, t = self._empty_bookings, now.timestamp()
        empty_bookings.seen_t.update(incident_rows.last_seen(claims))
        begins = {b: empty_bookings.begin_of(b, claim, t) for b, claim in claims.items()}
        empty_bookings.blind_s.update(incident_rows.unwatched_seconds(begins, now))
        self._cpus = cpu_rules.loads(incident_rows.stored_cpu_scan(self._host))
        past = incident_rows.usage_minutes(self._host, now)
        self._windows.recall(past, incident_rows.recent_usage(self._host, now).totals)
        self._recall_turns(past, policies.hogs, t)

    def _recall_turns(self, past: Sequence[UsageMinute], policy: GpuTimePolicy, t: float) -> None:
        """Minutes do not tell use of several GPUs in turn from use at the same time; samples do."""
        seconds = 60 * policy.sustained_minutes
        since = t - seconds - TURNS_MORE_S
        recent = [minute for minute in past if minute.at > since]
        minutes = minutes_of_movers(recent, seconds * policy.sustained_pct / 100)
        several = several_gpus(minutes, policy.sustained_pct)
        self._windows.turns.recall(minutes, incident_rows.utilization_steps(several, since))


def _listed(action: Rule) -> list[Finding]:
    return list(action())


# Recurring patterns of use outside of jobs, found every hour from the hourly history.


HOUR_S = 3600
# An hour with less watched time is left out.
WATCHED_S = HOUR_S * 0.75


def replace_patterns(zone: ZoneInfo, now: datetime) -> int:
    """Find the patterns of all hosts again and replace the stored ones; returns their number."""
    policy = thresholds.current(PatternPolicy)
    hosts = list(Gpu.objects.order_by().values_list("host", flat=True).distinct())
    Pattern.objects.exclude(host__in=hosts).delete()
    isolation = ItemIsolation("", "patterns", longest_retry=timedelta(0))
    counts = isolation.each(
        hosts,
        lambda host: f"patterns of {host}",
        lambda host: _replace_of_host(host, zone, now, policy, isolation),
        now,
    )
    return sum(count for _, count in counts)


def _replace_of_host(
    host: str, zone: ZoneInfo, now: datetime, policy: PatternPolicy, isolation: ItemIsolation
) -> int:
    """Replace the patterns of one host. A user who fails has none; the others are stored."""
    new_patterns: list[UsagePattern] = []
    if policy.enabled:
        used, watched = _history(host, now)
        time = WatchedTime.of(watched, zone, now)
        by_user = isolation.convert(
            list(used),
            lambda user: f"use by {user}",
            lambda user: of_user(user, used[user], time),
            now,
        )
        new_patterns = in_order(pattern for _, patterns in by_user for pattern in patterns)
    rows = isolation.convert(
        new_patterns,
        lambda pattern: f"pattern of {pattern.user} on {pattern.gpu_uuids[0]}",
        lambda pattern: _pattern_row(pattern, host, zone, now),
        now,
    )
    with transaction.atomic():
        Pattern.objects.filter(host=host).delete()
        Pattern.objects.bulk_create(row for _, row in rows)
    return len(rows)


def _history(host: str, now: datetime) -> tuple[dict[str, dict[int, dict[Place, float]]], set[int]]:
    """Use in percent by user, full hour and place, and the hours that were watched."""
    begin = int((now - LOOK_BACK).timestamp())
    end = int(now.timestamp()) // HOUR_S * HOUR_S
    watched = HostHour.objects.filter(host=host, t__gte=begin, t__lt=end, seen_s__gte=WATCHED_S)
    hours = ProcessHour.objects.filter(
        use__host=host, use__job_ref="", t__gte=begin, t__lt=end, sm_s__gt=0
    ).exclude(use__user="")
    rows = hours.values_list("use__gpu_id", "use__user", "use__program", "t").order_by()
    used: dict[str, dict[int, dict[Place, float]]] = {}
    for gpu, user, program, t, sm_s in rows.annotate(used=Sum("sm_s")):
        used.setdefault(user, {}).setdefault(t, {})[Place(gpu, program)] = 100 * sm_s / HOUR_S
    return used, set(watched.values_list("t", flat=True))


def _pattern_row(pattern: UsagePattern, host: str, zone: ZoneInfo, now: datetime) -> Pattern:
    """Its GPU and program are the most used ones; the text names the others."""
    gpus = Gpu.objects.in_bulk(pattern.gpu_uuids)
    return Pattern(
        host=host,
        gpu=gpus[pattern.gpu_uuids[0]],
        user=pattern.user,
        program=pattern.programs[0],
        days="".join(map(str, pattern.days)),
        start_minute=60 * pattern.start,
        end_minute=60 * pattern.end,
        zone=str(zone),
        hits=pattern.hits,
        chances=pattern.chances,
        mean_pct=pattern.mean_pct,
        text=sentence(pattern, gpu_names(sorted(gpu.index for gpu in gpus.values()))),
        found_at=now,
    )
