"""Processes on GPUs, looked at less often than the GPUs: lists of processes cost milliseconds.

The list of a GPU is not asked for again while its used memory is the same to the byte, all its
processes live and the work of the GPU is theirs: a process that comes takes memory, and one that
goes leaves /proc. How much each works is asked at each look. Two processes that change places with
equal memory show by work of a process that is not listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.gpus import MOST_MEMORY
from monitor.facts.readings import (
    EndedProcess,
    GpuMark,
    GpuProcess,
    GpuReading,
    GpuSweep,
    InstanceReading,
    UseSource,
)
from monitor.gpus.sampling.policy import ListedProcess, merged_processes, with_instances
from monitor.gpus.sampling.probes import nvml_calls
from monitor.gpus.sampling.probes.nvml_calls import CallRefused, Calls, Entry, Sample
from monitor.usage.policy.attribution import (
    AccountingSample,
    Attribution,
    Evidence,
    UseSample,
    is_accounted,
    judge,
)

# GPU usage of each process, by the best NVML call that the driver supports.


ACCOUNT = "nvmlDeviceGetAccountingStats_v2"
CALLS = {
    UseSource.PROCESSES_INFO: "nvmlDeviceGetProcessesUtilizationInfo",
    UseSource.PROCESS_UTILIZATION: "nvmlDeviceGetProcessUtilization",
}
# The use of a GPU as a whole is a mean of the last second. Where sweeps are slow, such readings
# cover too little of the time to limit what processes are told to have done.
DEVICE_PERIOD_S, LEAST_COVERED = 1.0, 0.6
_TRIES = 3
# The kind of the clients of MPS.
MPS = "M"


class _Gpu:
    """State of one GPU between sweeps."""

    def __init__(self, mark: GpuMark | None = None, at: datetime | None = None) -> None:
        self.mark = mark or GpuMark()
        self.at = at
        # At the last sweep, and those that were gone by then: their last samples come later.
        self.listed: set[int] = set()
        self.gone: set[int] = set()
        self.use_pct: list[float | None] = []
        # Ended processes whose accounting the driver still stores.
        self.over: set[int] | None = None
        self.accounting: bool | None = None


class ProcessUse:
    """`must(name, *args)` calls NVML or raises CallRefused. Unsupported calls are left out."""

    def __init__(self, must: Callable[..., Any]) -> None:
        self._must = must
        self._absent: set[str] = set()
        self._gpus: dict[str, _Gpu] = {}
        self.ended: list[EndedProcess] = []
        self.dropped = 0
        # GPUs whose process list may be outdated.
        self.doubtful: set[str] = set()
        self._encoders: dict[int, float] = {}

    @property
    def marks(self) -> dict[str, GpuMark]:
        return {uuid: gpu.mark for uuid, gpu in self._gpus.items()}

    def resume(self, marks: dict[str, GpuMark], at: datetime) -> None:
        """Go on where another process stopped at `at`."""
        self._gpus = {uuid: _Gpu(mark, at) for uuid, mark in marks.items()}

    def begin(self) -> None:
        self.ended, self.dropped, self.doubtful = [], 0, set()

    def forget_modes(self) -> None:
        """Query the accounting modes again, after NVML was reinitialised."""
        for gpu in self._gpus.values():
            gpu.accounting = None

    def note(self, uuid: str, utilization_pct: float | None) -> None:
        """How busy the GPU as a whole is, at each sweep of the faster tier."""
        self._gpus.setdefault(uuid, _Gpu()).use_pct.append(utilization_pct)

    def of(
        self, handle: Any, uuid: str, listed: Sequence[GpuProcess], now: datetime
    ) -> list[GpuProcess]:
        """The listed processes with what each did since the sweep before."""
        gpu = self._gpus.setdefault(uuid, _Gpu())
        passed = max(0.0, (now - gpu.at).total_seconds()) if gpu.at else 0.0
        pids = {process.pid for process in listed}
        self._encoders = {}
        evidence = self._evidence(handle, gpu, pids, passed)
        clients = frozenset(process.pid for process in listed if MPS in process.kinds)
        evidence = replace(evidence, clients=clients)
        encoders = self._encoders
        before = gpu.listed | gpu.gone
        attribution = judge(uuid, pids, before, evidence, gpu.mark, passed)
        gpu.gone, gpu.listed = gpu.listed - pids, pids
        gpu.mark, gpu.at, gpu.use_pct = attribution.mark, now, []
        self.ended += attribution.ended
        if attribution.is_doubtful:
            self.doubtful.add(uuid)
        self.dropped += attribution.dropped
        return [
            replace(_with_use(process, attribution, passed), encoder_pct=encoders.get(process.pid))
            for process in listed
        ]

    def _evidence(self, handle: Any, gpu: _Gpu, pids: Collection[int], passed: float) -> Evidence:
        readings = [pct for pct in gpu.use_pct if pct is not None]
        device = sum(readings) / len(readings) / 100 * passed if readings else None
        accounts = self._accounts(handle, gpu, pids)
        is_whole = len(readings) * DEVICE_PERIOD_S >= LEAST_COVERED * passed
        evidence = Evidence(
            accounts=accounts,
            device_s=device,
            device_is_whole=is_whole,
            device_now=readings[-1] / 100 if readings else None,
        )
        quiet = not (pids or gpu.listed or gpu.gone)
        if quiet or (accounts is not None and is_accounted(pids, gpu.mark)):
            return evidence
        for source, name in CALLS.items():
            samples = self._samples(name, handle, gpu.mark.cursor_us or 0)
            if samples is not None:
                return replace(evidence, samples=samples, samples_source=source)
        return evidence

    def _samples(self, name: str, handle: Any, cursor_us: int) -> list[UseSample] | None:
        """Empty: no process worked (NOT_FOUND). None: the driver does not support this call."""
        if name in self._absent:
            return None
        try:
            entries = self._insist(name, handle, cursor_us)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            if refused.code == nvml_calls.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return [] if refused.code == nvml_calls.NOT_FOUND else None
        for sample in entries:
            self._note_encoder(sample.pid, sample.encoder_pct)
        return [UseSample(s.pid, s.at_us, s.sm_pct) for s in entries]

    def _note_encoder(self, pid: int, pct: int) -> None:
        if 0 <= pct <= 100:
            self._encoders[pid] = max(float(pct), self._encoders.get(pid, 0.0))

    def _insist(self, name: str, handle: Any, cursor_us: int) -> Sequence[Sample]:
        """Retry: the list may grow between the query of its size and of its content."""
        for _ in range(_TRIES - 1):
            try:
                return list(self._must(name, handle, cursor_us))
            except CallRefused as refused:
                if refused.code != nvml_calls.INSUFFICIENT_SIZE:
                    raise
        return list(self._must(name, handle, cursor_us))

    def _accounts(
        self, handle: Any, gpu: _Gpu, pids: Collection[int]
    ) -> dict[int, AccountingSample] | None:
        """Accounting of listed processes, and of those that ended since the last sweep."""
        if ACCOUNT in self._absent:
            return None
        if gpu.accounting is None:
            gpu.accounting = self._accounting_mode(handle)
        if not gpu.accounting:
            return None
        stored_pids = set(self._ask("nvmlDeviceGetAccountingPids", handle) or ())
        unlisted = stored_pids - set(pids)
        listed_pids = unlisted if gpu.over is None else gpu.over
        queried = sorted({*pids, *gpu.mark.accounts, *(unlisted - listed_pids)})
        accounts = {pid: account for pid in queried if (account := self._account(handle, pid))}
        gpu.over = {pid for pid in unlisted if pid not in accounts or not accounts[pid].is_running}
        return {pid: a for pid, a in accounts.items() if pid in pids or not a.is_running}

    def _accounting_mode(self, handle: Any) -> bool | None:
        """None: refused, but perhaps not for long."""
        try:
            return bool(self._must("nvmlDeviceGetAccountingMode", handle))
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            return False if refused.is_lasting else None

    def _account(self, handle: Any, pid: int) -> AccountingSample | None:
        account = self._ask(ACCOUNT, handle, pid)
        if account is None:
            return None
        peak = account.peak_memory_bytes
        return AccountingSample(
            start_us=account.start_us,
            samples=account.samples,
            sum_pct=account.sum_pct,
            is_running=account.is_running,
            lived_s=account.lived_s,
            peak_memory_bytes=peak if 0 <= peak <= MOST_MEMORY else None,
        )

    def _ask(self, name: str, *args: Any) -> Any:
        try:
            return None if name in self._absent else self._must(name, *args)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            if refused.code == nvml_calls.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return None


def _with_use(process: GpuProcess, attribution: Attribution, passed: float) -> GpuProcess:
    busy = attribution.busy_s.get(process.pid)
    if busy is None or passed <= 0:
        return process
    share = round(min(100.0, 100 * busy / passed), 1)
    return replace(process, busy_s=busy, sm_pct=share, source=attribution.source[process.pid])


COMPUTE = "C"
_CALLS = {
    COMPUTE: ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "G": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "M": (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ),
}


class ProcessLists:
    """`must(name, *args)` calls NVML or raises CallRefused. Unsupported calls are left out.

    Each list costs milliseconds. An empty list is queried again after `rest` sweeps. A list that is
    refused for another reason stays as it was, without the processes that have ended.
    """

    def __init__(self, must: Callable[..., Any], rest: int = 0) -> None:
        self._must = must
        self._rest = rest
        self._resting: dict[tuple[str, str], int] = {}
        self._last: dict[tuple[str, str], list[Entry]] = {}
        self._absent: set[str] = set()
        # Whether a list of the last call of `lines` was refused.
        self.is_refused = False

    def lines(self, handle: Any, name: str, instance: int | None = None) -> list[ListedProcess]:
        """The lines of all lists of the GPU, or MIG instance, that is remembered by `name`.

        Raises CallRefused only when the GPU or the library is gone.
        """
        listed: list[ListedProcess] = []
        self.is_refused = False
        for kind in _CALLS:
            key = (name, kind)
            if self._resting.get(key, 0) > 0:
                self._resting[key] -= 1
                continue
            entries = self._list(kind, handle)
            if entries is None:
                self.is_refused = True
                entries = [e for e in self._last.get(key, ()) if _lives(e.pid)]
            elif not entries and kind != COMPUTE:
                self._resting[key] = self._rest
            self._last[key] = entries
            for entry in entries:
                instance_id = entry.instance if instance is None else instance
                listed.append(ListedProcess(kind, entry.pid, entry.memory_bytes, instance_id))
        return listed

    def _list(self, kind: str, handle: Any) -> list[Entry] | None:
        """None: refused. A GPU or driver without such a list has no such processes."""
        for name in _CALLS[kind]:
            if name not in self._absent:
                try:
                    return self._call(name, handle)
                except CallRefused as refused:
                    if refused.is_fatal:
                        raise
                    if refused.code != nvml_calls.FUNCTION_NOT_FOUND:
                        return [] if refused.is_lasting else None
                    self._absent.add(name)
        return []

    def _call(self, name: str, handle: Any) -> list[Entry]:
        """Retry: the list may grow between the query of its size and of its content."""
        for _ in range(_TRIES - 1):
            try:
                return list(self._must(name, handle))
            except CallRefused as refused:
                if refused.code != nvml_calls.INSUFFICIENT_SIZE:
                    raise
        return list(self._must(name, handle))


MIG_ON = 1


class Instances:
    """Reads the MIG instances of a GPU; empty while MIG is off."""

    def __init__(self, calls: Calls, lists: ProcessLists) -> None:
        self._calls = calls
        self._lists = lists

    def of(self, handle: Any, gpu_uuid: str) -> tuple[list[InstanceReading], list[ListedProcess]]:
        """The instances, and the lines of their own lists of processes."""
        readings: list[InstanceReading] = []
        lines: list[ListedProcess] = []
        for instance in self._handles(handle):
            number = self._calls.ask("nvmlDeviceGetGpuInstanceId", instance)
            memory = self._calls.ask("nvmlDeviceGetMemoryInfo", instance)
            readings.append(
                InstanceReading(
                    gpu_uuid=gpu_uuid,
                    uuid=self._calls.ask("nvmlDeviceGetUUID", instance) or "",
                    instance=number,
                    name=self._calls.ask("nvmlDeviceGetName", instance),
                    memory_total_bytes=memory.total if memory else None,
                    memory_used_bytes=memory.used if memory else None,
                )
            )
            lines += self._lists.lines(instance, f"{gpu_uuid}/{number}", number)
        return readings, lines

    def _handles(self, handle: Any) -> Iterator[Any]:
        mode = self._calls.ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != MIG_ON:
            return
        for index in range(self._calls.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if instance is not None:
                yield instance


# Number of sweeps after which an empty or unchanged list is queried again.
REST = 4
# Maximum share of the time for reading processes; if it takes more, the interval grows.
SHARE, LONGEST_S = 0.05, 5.0
# A sweep may begin this much early and still count as due.
EARLY_S = 0.3


class _Listing(Struct, frozen=True):
    """The process lists of a GPU, with the memory use and live pids at that time."""

    processes: list[GpuProcess]
    instances: list[InstanceReading]
    used_bytes: int | None
    alive: frozenset[int]
    is_refused: bool = False
    age: int = 0


class ProcessTier:
    """Swept each `interval_s` (0: with every GPU sweep) and when `is_wanted`. In between it repeats
    the last lists."""

    def __init__(self, calls: Calls, interval_s: float) -> None:
        self._least_s = self.interval_s = interval_s
        self._calls = calls
        # The calls that failed at the last look at the processes of each GPU.
        self._failed: dict[str, list[str]] = {}
        self._lists = ProcessLists(calls.must, REST if interval_s else 0)
        self._instance_probe = Instances(calls, self._lists)
        self.use = ProcessUse(calls.must)
        self._swept_at: datetime | None = None
        self._spent = 0.0
        self.is_fresh = True
        self.is_wanted = False
        self._processes: list[GpuProcess] = []
        self._instances: list[InstanceReading] = []
        self._listings: dict[str, _Listing] = {}

    def begin(self, now: datetime) -> None:
        """A sweep over the GPUs begins."""
        self.use.begin()
        passed = (now - self._swept_at).total_seconds() if self._swept_at else None
        is_early = passed is not None and 0 <= passed < self.interval_s - EARLY_S
        self.is_fresh, self.is_wanted = self.is_wanted or not is_early, False
        if self.is_fresh:
            self._swept_at, self._spent = now, 0.0
            self._processes, self._instances = [], []

    def look(self, handle: Any, gpu: GpuReading, now: datetime) -> None:
        """The processes of one GPU, if they are due; Refused when the GPU is gone."""
        self.use.note(gpu.uuid, gpu.utilization_pct)
        failed = self._calls.failed
        if not self.is_fresh:
            failed += self._failed.get(gpu.uuid, ())
            return
        began, before = time.perf_counter(), len(failed)
        listing = self._listings[gpu.uuid] = self._listing(handle, gpu)
        self._processes += self.use.of(handle, gpu.uuid, listing.processes, now)
        if gpu.uuid in self.use.doubtful:
            del self._listings[gpu.uuid]
        self._instances += listing.instances
        self._failed[gpu.uuid] = failed[before:]
        self._spent += time.perf_counter() - began

    def _listing(self, handle: Any, gpu: GpuReading) -> _Listing:
        last = self._listings.get(gpu.uuid)
        if last is not None and self._is_same(last, gpu):
            return replace(last, age=last.age + 1)
        instances, inside = self._instance_probe.of(handle, gpu.uuid)
        lines = with_instances(self._lists.lines(handle, gpu.uuid), inside)
        processes = merged_processes(gpu.uuid, lines, gpu.memory_total_bytes)
        alive = _alive(processes)
        refused = self._lists.is_refused
        return _Listing(processes, instances, gpu.memory_used_bytes, alive, refused)

    def _is_same(self, last: _Listing, gpu: GpuReading) -> bool:
        return (
            self._least_s > 0
            and last.age < REST
            and not last.is_refused
            and not last.instances
            and last.used_bytes is not None
            and last.used_bytes == gpu.memory_used_bytes
            and last.alive == _alive(last.processes)
        )

    def end(self) -> None:
        """End the sweep and adapt the interval to its duration."""
        if self.is_fresh and self._least_s:
            pause = min(LONGEST_S, self._spent / SHARE)
            self.interval_s = max(self._least_s, pause)

    def added_to(self, sweep: GpuSweep, answering: Collection[str]) -> GpuSweep:
        """The sweep with the processes of those GPUs that answer."""
        return replace(
            sweep,
            processes=tuple(p for p in self._processes if p.gpu_uuid in answering),
            instances=tuple(i for i in self._instances if i.gpu_uuid in answering),
            is_fresh=self.is_fresh,
            ended=tuple(self.use.ended),
            marks=self.use.marks,
            dropped=self.use.dropped,
        )


def _alive(processes: Collection[GpuProcess]) -> frozenset[int]:
    """Those that are in our /proc."""
    return frozenset(p.pid for p in processes if _lives(p.pid))


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
