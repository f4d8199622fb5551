"""What NVML tells of each process's work on a GPU, by the best call that the driver has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from monitor.policy.use_ladder import Account, Evidence, Judged, is_accounted, judge
from monitor.policy.use_samples import UseSample
from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_faults import Refused
from monitor.readings import GpuProcess
from monitor.use_facts import EndedProcess, GpuMark, UseSource

ACCOUNT = "nvmlDeviceGetAccountingStats_v2"
CALLS = {
    UseSource.PROCESSES_INFO: "nvmlDeviceGetProcessesUtilizationInfo",
    UseSource.PROCESS_UTILIZATION: "nvmlDeviceGetProcessUtilization",
}
_TRIES = 3


class _Gpu:
    """What is remembered of one GPU from sweep to sweep."""

    def __init__(self, mark: GpuMark | None = None, at: datetime | None = None) -> None:
        self.mark = mark or GpuMark()
        self.at = at
        self.listed: set[int] = set()
        self.use_pct: list[float | None] = []
        # Processes whose running sums the driver keeps although they have ended long ago.
        self.over: set[int] | None = None
        self.accounting: bool | None = None


class ProcessUse:
    """`must(name, *args)` calls NVML or raises Refused; what the driver lacks is left out."""

    def __init__(self, must: Callable[..., Any]) -> None:
        self._must = must
        self._absent: set[str] = set()
        self._gpus: dict[str, _Gpu] = {}
        self.ended: list[EndedProcess] = []
        self.dropped = 0

    @property
    def marks(self) -> dict[str, GpuMark]:
        return {uuid: gpu.mark for uuid, gpu in self._gpus.items()}

    def resume(self, marks: dict[str, GpuMark], at: datetime) -> None:
        """Go on where another process stopped at `at`."""
        self._gpus = {uuid: _Gpu(mark, at) for uuid, mark in marks.items()}

    def begin(self) -> None:
        self.ended, self.dropped = [], 0

    def forget_modes(self) -> None:
        """NVML was initialised anew: accounting may have been switched since."""
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
        evidence = self._evidence(handle, gpu, pids, passed)
        judged = judge(uuid, pids, gpu.listed, evidence, gpu.mark, passed)
        gpu.mark, gpu.listed, gpu.at, gpu.use_pct = judged.mark, pids, now, []
        self.ended += judged.ended
        self.dropped += judged.dropped
        return [_with_use(process, judged, passed) for process in listed]

    def _evidence(self, handle: Any, gpu: _Gpu, pids: Collection[int], passed: float) -> Evidence:
        known = [pct for pct in gpu.use_pct if pct is not None]
        device = sum(known) / len(known) / 100 * passed if known else None
        accounts = self._accounts(handle, gpu, pids)
        evidence = Evidence(accounts=accounts, device_s=device)
        quiet = not pids and not gpu.listed
        if quiet or (accounts is not None and is_accounted(pids, gpu.mark)):
            return evidence
        for source, name in CALLS.items():
            samples = self._samples(name, handle, gpu.mark.cursor_us or 0)
            if samples is not None:
                return replace(evidence, samples=samples, samples_source=source)
        return evidence

    def _samples(self, name: str, handle: Any, cursor_us: int) -> list[UseSample] | None:
        """Empty: nobody worked (NOT_FOUND). None: this call has no answer here."""
        if name in self._absent:
            return None
        try:
            found = self._insist(name, handle, cursor_us)
        except Refused as refused:
            if refused.is_fatal:
                raise
            if refused.code == faults.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return [] if refused.code == faults.NOT_FOUND else None
        return [UseSample(int(s.pid), int(s.timeStamp), int(s.smUtil)) for s in found]

    def _insist(self, name: str, handle: Any, cursor_us: int) -> Sequence[Any]:
        """The answer grows between asking for its size and for itself: then ask again."""
        for _ in range(_TRIES - 1):
            try:
                return list(self._must(name, handle, cursor_us))
            except Refused as refused:
                if refused.code != faults.INSUFFICIENT_SIZE:
                    raise
        return list(self._must(name, handle, cursor_us))

    def _accounts(self, handle: Any, gpu: _Gpu, pids: Collection[int]) -> dict[int, Account] | None:
        """Running sums of the listed, of those that ended since, and of such that came and went."""
        if ACCOUNT in self._absent:
            return None
        if gpu.accounting is None:
            gpu.accounting = bool(self._ask("nvmlDeviceGetAccountingMode", handle))
        if not gpu.accounting:
            return None
        kept = set(self._ask("nvmlDeviceGetAccountingPids", handle) or ())
        over = kept - set(pids)
        known = over if gpu.over is None else gpu.over
        asked = sorted({*pids, *gpu.mark.accounts, *(over - known)})
        found = {pid: account for pid in asked if (account := self._account(handle, pid))}
        gpu.over = {pid for pid in over if pid not in found or not found[pid].is_running}
        return {pid: a for pid, a in found.items() if pid in pids or not a.is_running}

    def _account(self, handle: Any, pid: int) -> Account | None:
        stats = self._ask(ACCOUNT, handle, pid)
        if stats is None:
            return None
        peak = int(stats.maxMemoryUsage)
        return Account(
            start_us=int(stats.startTime),
            samples=int(stats.sampleCount),
            sum_pct=int(stats.sumGpuUtil),
            is_running=bool(stats.isRunning),
            lived_s=stats.time / 1000,
            peak_memory_bytes=peak if peak < 1 << 62 else None,
        )

    def _ask(self, name: str, *args: Any) -> Any:
        try:
            return None if name in self._absent else self._must(name, *args)
        except Refused as refused:
            if refused.is_fatal:
                raise
            if refused.code == faults.FUNCTION_NOT_FOUND:
                self._absent.add(name)
            return None


def _with_use(process: GpuProcess, judged: Judged, passed: float) -> GpuProcess:
    busy = judged.busy_s.get(process.pid)
    if busy is None or passed <= 0:
        return process
    share = round(min(100.0, 100 * busy / passed), 1)
    return replace(process, busy_s=busy, sm_pct=share, source=judged.source[process.pid])
