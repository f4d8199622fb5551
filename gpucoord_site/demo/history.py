"""Two hours of the simulated server, seen through the sampler's own rules; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from gpucoord_site.demo.past import HOURS, PastJob
from monitor.policy import notes
from monitor.policy.attribution import attribute
from monitor.policy.notes import Note
from monitor.policy.states import with_states
from monitor.probes.scenario import Load, Scenario
from monitor.readings import ClaimFact, Snapshot

# The last minutes second by second, what is older less often: a chart can't show more.
FINE_MINUTES, COARSE_STEP_S = 15, 5
# The heat of a job stays for a while after its end.
COOLING_S = 90


def history(
    scenario: Scenario, jobs: Sequence[PastJob], host: str, now: datetime
) -> Iterator[tuple[Snapshot, list[Note]]]:
    """Snapshots up to `now`, oldest first, each with what was worth an event."""
    last: Snapshot | None = None
    for at in _instants(now):
        t = at.timestamp()
        sweep = scenario.at(at, _loads(jobs, t))
        claims = _claims(jobs, scenario, t)
        processes = attribute(sweep.processes, sweep.identities, claims)
        before = {gpu.uuid: gpu for gpu in last.gpus} if last else {}
        states = with_states(sweep.gpus, processes, claims, before, at, watched=False)
        snapshot = Snapshot(
            seq=last.seq + 1 if last else 1,
            at=at,
            probe="simulated",
            host=scenario.host(at, host),
            gpus=states.gpus,
            processes=processes,
        )
        yield snapshot, notes.of_sweep(last, snapshot, states.changes)
        last = snapshot


def _instants(now: datetime) -> Iterator[datetime]:
    end = int(now.timestamp())
    fine = end - 60 * FINE_MINUTES
    for t in [*range(end - 3600 * HOURS, fine, COARSE_STEP_S), *range(fine, end)]:
        yield datetime.fromtimestamp(t, now.tzinfo)


def _loads(jobs: Sequence[PastJob], t: float) -> list[Load]:
    return [job.load for job in jobs if job.started_at.timestamp() <= t < _ended(job) + COOLING_S]


def _claims(jobs: Sequence[PastJob], scenario: Scenario, t: float) -> list[ClaimFact]:
    return [
        ClaimFact(
            job_ref=job.name,
            seen=job.started_at,
            gpu_uuid=scenario.uuids[job.gpu],
            owner=job.owner,
            leader_pid=job.load.pid,
        )
        for job in jobs
        if job.started_at.timestamp() <= t < _ended(job)
    ]


def _ended(job: PastJob) -> float:
    return job.ended_at.timestamp()
