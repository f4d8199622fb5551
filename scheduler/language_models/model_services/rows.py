"""Rows of model services and their instances; what the proxy and the prompts may call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import F, Max, Min, Model, Prefetch, Q, QuerySet, Sum
from django.urls import reverse

from monitor.facts.formats import fact_from
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu, ProcessUse
from monitor.runtime.probes import service_state
from monitor.runtime.rows.wakeups import wake
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.language_models import (
    ENDED,
    OWNER,
    SERVING,
    WAKE_S,
    Instance,
    InstanceFact,
    InstanceState,
    PredictionMode,
    PromptStatus,
    Role,
    ServiceFact,
    shipped_boot_s,
)
from scheduler.language_models.model_services import policy as lifecycle
from scheduler.language_models.model_services.policy import (
    DEMAND_FOR,
    Candidate,
    Demand,
    Prediction,
    predict,
)
from scheduler.language_models.prompts import policy
from scheduler.models import (
    Attempt,
    Job,
    ModelBoot,
    ModelHour,
    ModelInstance,
    ModelService,
    ModelUse,
    Prompt,
)
from scheduler.models.language_models import GPU_KIND

MIB = 1024**2
# How much a new measurement changes the learned boot time.
BOOT_WEIGHT = 0.3
# Instances that count for the pause before the next boot.
MOST_COUNTED = 16
ENDED_STATES = tuple(sorted(state.value for state in ENDED))


def base_url(page: str) -> str | None:
    """The address of the endpoint of this host; it ends with /v1. None: it does not run.

    page: host name and port under which the client reaches the page.
    """
    state = service_state.read(Path(settings.DATA) / "run")
    if state is None or not state.models_address:
        return None
    port = urlsplit(state.models_address).port
    name = urlsplit(f"//{page}").hostname or ""
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/v1"


def endpoint_problem() -> str:
    """Why the endpoint of this host can't be reached; "" = it can, or there is no model."""
    return service_state.problem_of(Path(settings.DATA) / "run", "models")


def services() -> QuerySet[ModelService]:
    """All services by name, each with its instances that have not ended in `open_ones`."""
    opened = ModelInstance.open().select_related("job")
    return ModelService.objects.order_by("name").prefetch_related(
        Prefetch("instances", opened, to_attr="open_ones"), "boots"
    )


def find(name: str) -> ModelService | None:
    """The service that a user means, as `services` has it."""
    return services().filter(name=ModelService.names().find(name)).first()


def instances_without_answers(service: ModelService) -> int:
    """How many of the newest instances ended in a row that failed with all of their requests."""
    ended = service.instances.filter(state__in=ENDED_STATES).order_by("-ended_at", "-pk")
    counts = ended.values_list("tasks_completed", "failures")[:MOST_COUNTED]
    fruitless = takewhile(lambda each: not each[0] and each[1], counts)
    return sum(1 for _ in fruitless)


def request_instance(service_id: int, now: datetime) -> bool:
    """Record that a request waits for an instance, and wake the scheduler.

    Call it again while the request waits: a demand counts for a minute. False: there is no such
    service, or it is disabled.
    """
    rows = ModelService.objects.filter(pk=service_id, enabled=True)
    is_recorded = bool(rows.update(wanted_at=now))
    if is_recorded:
        wake("scheduler")
    return is_recorded


def service_fact(row: ModelService) -> ServiceFact:
    return fact_from(
        ServiceFact,
        row,
        memory_bytes=row.gpu_memory_bytes,
        role=Role(row.role),
        expected_boot_s=expected_boot_s(row),
        is_held=row.held_for_batch is not None,
        predicted=0,
    )


def expected_boot_s(row: ModelService, gpu_model: str | None = None) -> float:
    """The learned boot seconds on this GPU model, else the worst learned ones.

    Before the first boot: as the service states, else as shipped for its size.
    """
    boots = [boot for boot in row.boots.all() if boot.boot_s is not None]
    same = [boot.boot_s or 0.0 for boot in boots if boot.gpu_model == gpu_model]
    known = same or [boot.boot_s or 0.0 for boot in boots]
    return max(known, default=float(row.boot_s or 0) or shipped_boot_s(row.name))


def instance_fact(row: ModelInstance) -> InstanceFact:
    state, uuids = InstanceState(row.state), tuple(row.gpu_uuids)
    return fact_from(InstanceFact, row, state=state, gpu_uuids=uuids, requests_per_hour=0.0)


Attempts = Mapping[int, Attempt]


def attempts(instances: Iterable[ModelInstance]) -> dict[int, Attempt]:
    """The open attempts of the instances' jobs, by job."""
    ids = [row.job_id for row in instances if row.job_id is not None]
    rows = Attempt.objects.filter(job__in=ids, ended_at=None)
    return {row.job_id: row for row in rows.select_related("job", "yield_request")}


def job_owner() -> User:
    """The user who owns the jobs of instances. No login as this user is possible."""
    owner = User.objects.filter(username=OWNER).first()
    return owner or User.objects.create_user(OWNER)


def serving(service: ModelService) -> int:
    """How many instances serve or boot."""
    return service.instances.filter(state__in=[state.value for state in SERVING]).count()


def needed_memory(service: ModelService) -> int | None:
    """GPU memory of a new instance: declared, or more if a peak was higher; None = unknown."""
    if service.gpus == 0:
        return None
    known = [boot.peak_memory_bytes for boot in service.boots.all() if boot.peak_memory_bytes]
    peaks = [round(peak * ABOVE_PEAK) for peak in known]
    declared = service.gpu_memory_bytes
    return max([*peaks, *([declared] if declared else [])], default=None)


def on_gpus_of(job_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """The GPUs that the services of these jobs name; services that name none are left out."""
    rows = ModelInstance.objects.filter(job__in=list(job_ids)).exclude(service__on_gpus=[])
    return {job: tuple(uuids) for job, uuids in rows.values_list("job", "service__on_gpus")}


def chosen_gpu(service: ModelService) -> str:
    """Of the GPUs that the service names, the one with the fewest instances; "" = any of them."""
    if not service.on_gpus or service.gpus != 1:
        return ""
    used = [
        uuid
        for row in ModelInstance.open().filter(service=service).select_related("job")
        for uuid in row.gpu_uuids or [row.job.gpu_uuid if row.job else ""]
    ]
    return str(min(service.on_gpus, key=used.count))


def gpu_model(row: ModelInstance) -> str:
    """The model of the instance's first GPU; "" = it runs on the CPU, or the GPU is unknown."""
    if not row.gpu_uuids:
        return ""
    return Gpu.objects.filter(uuid=row.gpu_uuids[0]).values_list("name", flat=True).first() or ""


def learn_boot(service: ModelService, row: ModelInstance, now: datetime) -> str:
    """Store how long the boot took; returns it in words."""
    if row.started_boot_at is None:
        return ""
    took = max(0.0, (now - row.started_boot_at).total_seconds())
    boot, _ = ModelBoot.objects.get_or_create(
        service=service, gpu_model=gpu_model(row)[:GPU_KIND], defaults={"measured_at": now}
    )
    before = took if boot.boot_s is None else boot.boot_s
    boot.boot_s = before + BOOT_WEIGHT * (took - before)
    boot.boots, boot.measured_at = boot.boots + 1, now
    boot.save(update_fields=["boot_s", "boots", "measured_at"])
    return f" after {took:.1f} s"


def expected_wake_s(row: ModelInstance) -> float:
    """The learned seconds to wake on this GPU model, else the shipped value."""
    boots = row.service.boots.filter(gpu_model=gpu_model(row)[:GPU_KIND])
    return boots.values_list("wake_s", flat=True).first() or WAKE_S


def learn_wake(row: ModelInstance, since: datetime, now: datetime) -> str:
    """Store how long it took to wake; returns it in words."""
    took = max(0.0, (now - since).total_seconds())
    boot = row.service.boots.filter(gpu_model=gpu_model(row)[:GPU_KIND]).first()
    if boot is not None:
        before = took if boot.wake_s is None else boot.wake_s
        boot.wake_s = before + BOOT_WEIGHT * (took - before)
        boot.save(update_fields=["wake_s"])
    return f" after {took:.1f} s"


def peak_bytes(row: ModelInstance, now: datetime) -> int | None:
    """The most memory that its running processes held on one GPU; None = unknown."""
    return max(_peaks(row, now), default=None)


def host_free_bytes(host: str) -> int | None:
    """Memory of the host that neither processes use nor jobs have reserved; None = unknown."""
    snapshot = snapshots.newest(host)
    if snapshot is None:
        return None
    total, available = snapshot.host.memory_total_bytes, snapshot.host.memory_available_bytes
    if total is None or available is None:
        return None
    placed = Job.objects.filter(attempts__ended_at=None, attempts__host=host)
    reserved = placed.aggregate(total=Sum("memory_bytes"))["total"] or 0
    return max(0, min(available, total - reserved))


def held_bytes(row: ModelInstance) -> int | None:
    """Memory of its processes on its fullest GPU; None = unknown, or not read since then.

    Where the driver lists none of its processes, it may hold all that other processes do not.
    """
    snapshot = snapshots.newest(row.host)
    if snapshot is None or snapshot.at <= row.since:
        return None
    used = {gpu.uuid: gpu.memory_used_bytes for gpu in snapshot.gpus}
    own: dict[str, list[int | None]] = {uuid: [] for uuid in row.gpu_uuids}
    others = dict.fromkeys(row.gpu_uuids, 0)
    for process in snapshot.processes:
        if process.gpu_uuid not in own:
            continue
        if process.job_ref == str(row.job_id):
            own[process.gpu_uuid].append(process.memory_bytes)
        else:
            others[process.gpu_uuid] += process.memory_bytes or 0
    held = [
        lifecycle.held(own[uuid], used_bytes=used.get(uuid), others_bytes=others[uuid])
        for uuid in row.gpu_uuids
    ]
    known = [size for size in held if size is not None]
    return max(known) if known and len(known) == len(held) else None


def last_held_bytes(row: ModelInstance, now: datetime) -> int | None:
    """The most that it is known to have held on a GPU, for when its use is unknown.

    Its own peak or that of its service there, else its placed memory, else the whole GPU.
    """
    boots = row.service.boots.filter(gpu_model=gpu_model(row)[:GPU_KIND])
    learned = boots.values_list("peak_memory_bytes", flat=True).first()
    peaks = [size for size in (peak_bytes(row, now), learned, row.memory_bytes) if size]
    whole = Gpu.objects.filter(uuid__in=row.gpu_uuids).aggregate(most=Max("memory_total_bytes"))
    return max(peaks, default=whole["most"])


def too_old(keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """Instances that ended long ago."""
    yield ModelInstance.objects.filter(ended_at__lt=now - keep.events)
    yield ModelHour.objects.filter(at__lt=now - keep.minutes)


# Requests in flight end, the server sleeps, and the driver's figures are read.
LEAVES_FOR = timedelta(minutes=5)
LEAVING = (InstanceState.DRAINING.value, InstanceState.COOLING.value)
HOLDS_GPUS = (InstanceState.READY.value, InstanceState.SLEEPING.value, *LEAVING)
WEEKS = 4
# Processes that were listed within this time still run.
PEAKS_OF = timedelta(seconds=60)
# Reserved above a measured peak.
ABOVE_PEAK = 1.1


def loaded_on(host: str) -> list[ModelInstance]:
    """Instances that are loaded on GPUs of this host, or are leaving them."""
    rows = ModelInstance.objects.filter(host=host, state__in=HOLDS_GPUS, service__gpus__gt=0)
    return list(rows.select_related("service").prefetch_related("service__boots").order_by("pk"))


def leaves(row: ModelInstance, now: datetime) -> bool:
    """Whether an instance is giving its GPU memory back.

    One that can't end does not delay others for longer than LEAVES_FOR.
    """
    if now - row.since > LEAVES_FOR:
        return False
    asleep = row.state == InstanceState.SLEEPING.value
    return row.state in LEAVING or (asleep and not is_measured(row))


def is_measured(row: ModelInstance) -> bool:
    """Whether it was checked what it holds asleep.

    An instance whose sleep left memory does not sleep again, so that the check was of this sleep.
    """
    return row.left_bytes is not None or row.left_memory


def to_wake(host: str) -> list[ModelInstance]:
    """Sleeping instances of this host for which requests wait."""
    asleep = ModelInstance.objects.filter(host=host, state=InstanceState.SLEEPING.value)
    return list(asleep.exclude(wake_at=None).select_related("service", "job").order_by("pk"))


def candidate(row: ModelInstance, now: datetime) -> Candidate:
    service = row.service
    return Candidate(
        instance=instance_fact(row),
        name=service.name,
        role=Role(service.role),
        pin=service.pin,
        reload_s=expected_boot_s(service, gpu_model(row)),
        requests_per_hour=requests_per_hour(service, now),
        min_residency_s=service.min_residency_s,
    )


def requests_per_hour(service: ModelService, now: datetime) -> float:
    """The mean of this hour of the last weeks; of a newer service, of the last 24 hours."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    same = service.hours.filter(at__in=[hour - timedelta(weeks=n) for n in range(1, WEEKS + 1)])
    if counts := list(same.values_list("requests", flat=True)):
        return sum(counts) / len(counts)
    day = service.hours.filter(at__gt=now - timedelta(hours=24))
    return float(day.aggregate(total=Sum("requests"))["total"] or 0) / 24


def learn_peak(row: ModelInstance, now: datetime) -> None:
    """Store the most memory that the instance's processes ever held on one GPU, if it is more."""
    if peak := peak_bytes(row, now):
        boots = ModelBoot.objects.filter(
            service=row.service_id, gpu_model=gpu_model(row)[:GPU_KIND]
        )
        higher = Q(peak_memory_bytes=None) | Q(peak_memory_bytes__lt=peak)
        boots.filter(higher).update(peak_memory_bytes=peak)


def _peaks(row: ModelInstance, now: datetime) -> list[int]:
    seen = ProcessUse.objects.filter(
        host=row.host, job_ref=str(row.job_id), last_seen_at__gte=now - PEAKS_OF, ended_at=None
    )
    peaks = seen.filter(peak_memory_bytes__gt=0).order_by().values("gpu")
    return list(peaks.annotate(total=Sum("peak_memory_bytes")).values_list("total", flat=True))


def count_requests(row: ModelInstance, now: datetime) -> None:
    """Add the instance's new requests to those of this hour."""
    total = row.tasks_completed + row.failures
    if total <= row.counted:
        return
    hour, _ = ModelHour.objects.get_or_create(
        service_id=row.service_id, at=now.replace(minute=0, second=0, microsecond=0)
    )
    ModelHour.objects.filter(pk=hour.pk).update(requests=F("requests") + total - row.counted)
    ModelInstance.objects.filter(pk=row.pk).update(counted=total)


# Rows of earlier weeks -> the number of instances that a service will need.


# Instances are ready this long before the hour begins.
AHEAD = timedelta(seconds=60)
HOUR, WEEK = timedelta(hours=1), timedelta(weeks=1)


def prediction(service: ModelService, now: datetime) -> Prediction | None:
    """For this hour, or for the next one if instances must boot now. None: no demand is known."""
    ready_at = now + timedelta(seconds=expected_boot_s(service)) + AHEAD
    chosen = [_of_hour(service, hour) for hour in sorted({_hour(now), _hour(ready_at)})]
    return max(
        (predicted for predicted in chosen if predicted is not None),
        key=lambda predicted: predicted.instances,
        default=None,
    )


def automatic(now: datetime) -> dict[int, int]:
    """The predicted instances of the services that follow the prediction, by service."""
    mode = PredictionMode.AUTOMATIC.value
    services = ModelService.objects.filter(enabled=True, prediction=mode)
    made = {row.pk: prediction(row, now) for row in services.prefetch_related("boots")}
    return {id_: predicted.instances for id_, predicted in made.items() if predicted is not None}


def _of_hour(service: ModelService, hour: datetime) -> Prediction | None:
    answer_s = _answer_s(service, hour)
    demand = Demand(weeks=_weeks(service, hour), answer_s=answer_s)
    return predict(demand, service.concurrency, service.min_instances, service.max_instances)


def _weeks(service: ModelService, hour: datetime) -> list[float]:
    """Requests in the same hour of each of the last weeks in which the service was in use."""
    began = service.hours.aggregate(first=Min("at"))["first"]
    hours = [hour - n * WEEK for n in range(1, WEEKS + 1)]
    hours = [at for at in hours if began is not None and at >= began]
    counts = dict(service.hours.filter(at__in=hours).values_list("at", "requests"))
    return [float(counts.get(at, 0)) for at in hours]


def _answer_s(service: ModelService, now: datetime) -> float | None:
    rows = ModelUse.objects.filter(model=service.name, hour_at__gte=now - WEEK)
    sums = rows.aggregate(s=Sum("answer_s"), n=Sum("requests"), failed=Sum("failed"))
    answered = (sums["n"] or 0) - (sums["failed"] or 0)
    return sums["s"] / answered if answered > 0 else None


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


# Rows of the queues that decide about evictions: jobs and prompts that wait.

NEWEST = 50


def _scripts() -> QuerySet[Job]:
    waiting = Job.objects.filter(state=JobState.QUEUED.value, held="", model_service=None)
    return waiting.filter(gpus__gt=0)


def waiting_scripts() -> int:
    """How many jobs wait for a GPU."""
    return _scripts().count()


def waiting_prompts(now: datetime) -> int:
    """Queued prompts, and services with requests of the endpoint that no instance could take."""
    enabled = ModelService.objects.filter(enabled=True)
    requests = enabled.filter(wanted_at__gte=now - DEMAND_FOR).count()
    return requests + Prompt.objects.filter(status=PromptStatus.QUEUED.value).count()


def in_need(most: int) -> dict[int, int]:
    """The first jobs that wait only for GPUs that others hold: their place in the queue, by id."""
    rows = _scripts().exclude(blockers=[]).order_by("-priority", "submitted_at", "id")
    places: dict[int, int] = {}
    for id_, blockers in rows.values_list("id", "blockers")[: most * 4]:
        if (
            all(blocker.get("tier") == Tier.CONTENTION for blocker in blockers)
            and len(places) < most
        ):
            places[id_] = len(places)
    return places


def average_script_s() -> float | None:
    """The mean run time of the newest jobs on GPUs; None = none has ended."""
    ended = Job.objects.filter(
        state=JobState.FINISHED.value,
        outcome=Outcome.SUCCEEDED.value,
        gpus__gt=0,
        model_service=None,
        started_at__isnull=False,
    )
    times = ended.order_by("-id").values_list("started_at", "ended_at")[:NEWEST]
    took = [(end - begin).total_seconds() for begin, end in times if begin and end]
    return max(0.0, sum(took)) / len(took) if took else None


# Models whose instances are on other hosts.


# The endpoint of a host starts with its first model, and is known to other hosts a little later.
ENDPOINT_COMES = timedelta(seconds=15)


def elsewhere(row: ModelService, host: str, now: datetime) -> tuple[str, tuple[Instance, ...]]:
    """Where the model runs, if only hosts other than `host` have ready instances; else "".

    With the endpoints there, the one with the fewest requests first. row: one of `services`. An
    instance that boots may still come to this host, and the endpoint of one that has just become
    ready may still come.
    """
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    states = {(instance.host, instance.state) for instance in opened}
    names = {at for at, state in states if state == InstanceState.READY.value}
    is_booting = any(state == InstanceState.BOOTING.value for _, state in states)
    if not names or is_booting or names & {"", host}:
        return "", ()
    load: Counter[str] = Counter()
    for instance in opened:
        load[instance.host] += instance.in_flight
    facts = {fact.name: fact for fact in host_rows.registered(names)}
    path = reverse("model", args=[row.name])
    pages = {
        name: f"{facts[name].address.rstrip('/')}{path}"
        if name in facts and facts[name].address
        else ""
        for name in sorted(names)
    }
    endpoints = tuple(
        Instance(id=0, url=f"{facts[name].models_address.rstrip('/')}/v1", host=name)
        for name in sorted(facts, key=lambda name: (load[name], name))
        if facts[name].models_address
    )
    ready = [each.ready_at for each in opened if each.state == InstanceState.READY.value]
    if not endpoints and all(at is not None and now - at < ENDPOINT_COMES for at in ready):
        return "", ()
    return policy.elsewhere(row.name, pages, is_passed_on=bool(endpoints)), endpoints
