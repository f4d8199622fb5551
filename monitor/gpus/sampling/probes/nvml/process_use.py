"""GPU usage of each process, by the best NVML call that the driver supports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from monitor.facts.bounds import MOST_MEMORY
from monitor.facts.readings import GpuProcess
from monitor.facts.usage import EndedProcess, GpuMark, UseSource
from monitor.gpus.sampling.probes.nvml import faults
from monitor.gpus.sampling.probes.nvml.answers import Sample
from monitor.gpus.sampling.probes.nvml.faults import CallRefused
from monitor.usage.policy.attribution import (
    AccountingSample,
    Attribution,
    Evidence,
    is_accounted,
    judge,
)
from monitor.usage.policy.samples import UseSample

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
            if refused.code == faults.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return [] if refused.code == faults.NOT_FOUND else None
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
                if refused.code != faults.INSUFFICIENT_SIZE:
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
            if refused.code == faults.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return None


def _with_use(process: GpuProcess, attribution: Attribution, passed: float) -> GpuProcess:
    busy = attribution.busy_s.get(process.pid)
    if busy is None or passed <= 0:
        return process
    share = round(min(100.0, 100 * busy / passed), 1)
    return replace(process, busy_s=busy, sm_pct=share, source=attribution.source[process.pid])
