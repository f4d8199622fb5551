"""The probe of NVIDIA GPUs, through NVML, with the counters of their faults."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pynvml
from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import HealthReading, Xid
from monitor.facts.readings import CallCost, GpuMark, GpuReading, GpuSweep, Health, position
from monitor.gpus.sampling.probes import nvml_calls
from monitor.gpus.sampling.probes.nvml_calls import Answers, CallRefused, Calls, Kept, Key
from monitor.gpus.sampling.probes.nvml_processes import ProcessTier

EVERY_S = 5.0
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_PAGE_CAUSES = (0, 1)
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


class HealthTier:
    """Reads each GPU every few seconds and repeats what it read in between.

    `must(name, *args)` calls NVML or raises CallRefused. Calls that a GPU does not
    support are not made again.
    """

    def __init__(self, must: Callable[..., Any], every_s: float = EVERY_S) -> None:
        self._must = must
        self._every_s = every_s
        self._is_refused = False
        self._absent: set[tuple[Any, ...]] = set()
        self._last: dict[str, tuple[float, HealthReading]] = {}

    def of(self, handle: Any, uuid: str, t: float) -> HealthReading:
        """The newest reading of a GPU at `t` seconds; raises CallRefused if it is gone."""
        read_t, reading = self._last.get(uuid, (float("-inf"), None))
        if reading is None or not 0 <= t - read_t < self._every_s:
            self._is_refused = False
            reading = self._read(handle, uuid)
            # A refused call is repeated at the next sweep.
            self._last[uuid] = (float("-inf") if self._is_refused else t, reading)
        return reading

    def forget(self) -> None:
        """Ask for everything again, after NVML was reinitialised."""
        self._absent.clear()

    def _read(self, handle: Any, uuid: str) -> HealthReading:
        def ask(name: str, *args: Any) -> Any:
            return self._ask(uuid, name, handle, *args)

        reasons = next((r for name in _REASONS if (r := ask(name)) is not None), None)
        rows = ask("nvmlDeviceGetRemappedRows")
        pages = self._pages(ask) if rows is None else None
        pending = ask("nvmlDeviceGetRetiredPagesPendingStatus") if pages is not None else None
        return HealthReading(
            gpu_uuid=uuid,
            clock_reasons=reasons,
            ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            retired_pages=pages,
            retired_pending=None if pending is None else bool(pending),
            remapped_corrected=rows[0] if rows else None,
            remapped_uncorrected=rows[1] if rows else None,
            remap_pending=bool(rows[2]) if rows else None,
            remap_failed=bool(rows[3]) if rows else None,
        )

    def _pages(self, ask: Callable[..., Any]) -> int | None:
        """Memory pages taken out of use: what GPUs before Ampere have instead of rows."""
        lists = [ask("nvmlDeviceGetRetiredPages", cause) for cause in _PAGE_CAUSES]
        return None if None in lists else sum(lists)

    def _ask(self, uuid: str, name: str, handle: Any, *args: Any) -> Any:
        key = (uuid, name, *args)
        if key in self._absent:
            return None
        try:
            return self._must(name, handle, *args)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            if refused.is_lasting:
                self._absent.add(key)
            elif refused.code not in nvml_calls.NO_VALUE:
                self._is_refused = True
            return None


XID_EVENT = 8
# Timeout of one wait, and so the upper bound of the time to stop.
WAIT_MS = 100
STOP_S = 2.0
PAUSE_S = 1.0
_TIMEOUT = 10


class XidWatch:
    """`must` and `call` call NVML or raise CallRefused; `call` is for the waiting thread.

    `about(uuid)`: the calls inside are about this GPU, so that a hang leaves out no other.
    Start it after NVML is initialised, stop it before NVML is shut down.
    """

    def __init__(
        self,
        must: Callable[..., Any],
        call: Callable[..., Any],
        about: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._must = must
        self._call = call
        self._about = about
        self._heard: SimpleQueue[Xid] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handles: Mapping[str, Any]) -> None:
        """Listen to these GPUs, {uuid: handle}; silently to none where the driver can't."""
        self.stop()
        try:
            events = self._must("nvmlEventSetCreate")
        except CallRefused:
            return
        if not [uuid for uuid in handles if self._register(uuid, handles[uuid], events)]:
            self._free(events)
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._listen,
            args=(events, dict(handles), self._stop),
            name="xids",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            # A daemon thread that hangs in the driver is abandoned.
            self._thread.join(STOP_S)
            self._thread = None

    def take(self) -> tuple[Xid, ...]:
        """Return and remove the XIDs received since the last call."""
        xids: list[Xid] = []
        try:
            while True:
                xids.append(self._heard.get_nowait())
        except Empty:
            return tuple(xids)

    def _register(self, uuid: str, handle: Any, events: Any) -> bool:
        try:
            with self._about(uuid):
                self._must("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
        except CallRefused:
            return False
        return True

    def _listen(self, events: Any, handles: Mapping[str, Any], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                event = self._call("nvmlEventSetWait_v2", events, WAIT_MS)
            except CallRefused as refused:
                if refused.code == _TIMEOUT:
                    continue
                if refused.code in nvml_calls.LIBRARY:
                    return
                # A GPU that is lost answers each wait at once.
                stop.wait(PAUSE_S)
                continue
            device, kind, data = event
            self._note(device, kind, data, handles)
        self._free(events)

    def _note(self, device: Any, kind: int, data: int, handles: Mapping[str, Any]) -> None:
        if kind != XID_EVENT:
            return
        for uuid, handle in handles.items():
            if _same(handle, device):
                self._heard.put(Xid(uuid, data))

    def _free(self, events: Any) -> None:
        try:
            self._call("nvmlEventSetFree", events)
        except CallRefused:
            return


def _same(answer: Any, other: Any) -> bool:
    """ctypes makes a new pointer object for each answer, so what it points to is compared."""
    try:
        return _address(answer) == _address(other)
    except ctypes.ArgumentError:
        return bool(answer == other)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


logger = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
# Number of failed calls of a GPU that are named: more than there are kinds, since the planner looks
# whether its memory and its processes could be read.
MOST_FAILED = 64
# The subject of the calls for the driver's versions.
VERSIONS = "versions"
KERNEL_LIST = Path("/proc/driver/nvidia/gpus")
# Initialising again, while a GPU is missing, may take this share of the time at most.
REINIT_SHARE = 0.05
REINIT_MIN_S, REINIT_MAX_S = 0.9, 60.0
# And this share where the kernel lists no GPUs, so that nothing else tells of new ones.
RELOOK_SHARE, RELOOK_MIN_S = 0.01, 1.9


# Calls that always answer the same about a GPU, by the field that they give.
_STATIC: Mapping[str, Key] = {
    "name": ("nvmlDeviceGetName",),
    "pci_id": ("nvmlDeviceGetPciInfo",),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability",),
    "architecture": ("nvmlDeviceGetArchitecture",),
    "cores": ("nvmlDeviceGetNumGpuCores",),
    "max_sm_clock_mhz": ("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM),
}
# Calls of each sweep.
_MEMORY: Key = ("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
_USE: Key = ("nvmlDeviceGetUtilizationRates",)
_CHANGING: Mapping[str, Key] = {
    "power_w": ("nvmlDeviceGetPowerUsage",),
    "power_limit_w": ("nvmlDeviceGetEnforcedPowerLimit",),
    "temperature_c": ("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
    "performance_state": ("nvmlDeviceGetPerformanceState",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption",),
}
_CALLS: Mapping[str, Key] = {
    "memory_total_bytes": _MEMORY[:1],
    "memory_used_bytes": _MEMORY[:1],
    "utilization_pct": _USE,
    **_CHANGING,
    **_STATIC,
}


class _Device(Struct):
    """A handle, what is known to stay the same about the GPU behind it, and its last answers.

    `wanted`: fields that stay the same but could not be read yet. `hung`: the GPU is not called.
    """

    handle: Any
    facts: GpuReading
    wanted: set[str]
    kept: Kept = field(default_factory=Kept)
    hung: nvml_calls.Fault | None = None


class NvmlProbe:
    """Keeps NVML open between sweeps; one GPU that fails never ends a sweep.

    Processes are looked at each `processes_s` seconds, GPUs at every sweep.
    """

    name = "nvml"

    def __init__(self, processes_s: float = 0.0) -> None:
        self._open = False
        self._devices: list[_Device] = []
        self._facts: dict[str, tuple[GpuReading, set[str]]] = {}
        self._unnamed: list[nvml_calls.Fault] = []
        self._unopened: list[int] = []
        self._left_out: Mapping[str, str] = {}
        self._counted = 0
        self._listing: list[str] = []
        self._reinit_at = self._relook_at = 0.0
        self._reinit_wanted = False
        self._calls = Calls(_must)
        self._must, self._ask = self._calls.must, self._calls.ask
        self._tier = ProcessTier(self._calls, processes_s)
        self._health = HealthTier(self._must)
        self._xids = XidWatch(self._must, _must, self._about)

    @property
    def asking(self) -> tuple[str, float] | None:
        """The call that is under way and when it began (monotonic): one may never come back."""
        return self._calls.asking

    @property
    def asking_about(self) -> str:
        """The subject of the call: a UUID, `position` of a GPU, VERSIONS, "" = the driver."""
        return self._calls.device

    def list_processes(self) -> None:
        """The next sweep lists them, whether or not it is time."""
        self._tier.is_wanted = True

    def leave_out(self, hung: Mapping[str, str]) -> None:
        """Do not call these; {what `asking_about` said: the call that did not come back}."""
        if hung != self._left_out:
            self._left_out = dict(hung)
            self._reinit_wanted, self._reinit_at = True, 0.0

    def trial(self, gpu: str, now: datetime) -> Look:
        """A look at this GPU alone; `gpu` as `asking_about` names it."""
        others = dict.fromkeys((*self._facts, VERSIONS), "") | dict(self._left_out)
        others.pop(gpu, None)
        return Look(now, others)

    def open(self) -> None:
        """Open NVML in this process. A fault is not raised: the sweeps tell it and try again."""
        try:
            self._initialise()
        except CallRefused:
            self.close()

    def close(self) -> None:
        self._xids.stop()
        if self._open:
            with suppress(CallRefused):
                self._must("nvmlShutdown")
        self._open = False
        self._devices = []

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep:
        """One sweep over all GPUs. The claims are not needed: the driver knows the pids."""
        self._calls.times.begin(now, len(self._devices))
        self._tier.begin(now)
        try:
            self._make_ready()
            sweep = self._sweep(now)
        except CallRefused as refused:
            self.close()
            sweep = GpuSweep(problem=refused.fault.problem, remedy=refused.fault.remedy)
        errors, failures = self._calls.take_counts()
        return replace(
            sweep,
            xids=self._xids.take(),
            query_errors=errors,
            init_failures=failures,
            costs=self._calls.times.costs,
        )

    def resume(
        self, marks: Mapping[str, GpuMark], swept_at: datetime, costs: Sequence[CallCost]
    ) -> None:
        """Go on where another process stopped at `swept_at`, before the first sweep."""
        self._tier.use.resume(dict(marks), swept_at)
        self._calls.times.resume(costs)

    def versions(self) -> list[str]:
        """Those of the driver's library and of CUDA, for people; none while NVML is not open."""
        if not self._open or VERSIONS in self._left_out:
            return []
        with self._about(VERSIONS):
            driver = self._optional("nvmlSystemGetDriverVersion")
            cuda = self._optional("nvmlSystemGetCudaDriverVersion")
        return [
            *([f"driver {driver}"] if driver else []),
            *([f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"] if cuda else []),
        ]

    def _optional(self, name: str) -> Any:
        """None if the call is refused for any reason."""
        try:
            return self._must(name)
        except CallRefused:
            return None

    @contextmanager
    def _about(self, device: str) -> Iterator[None]:
        """The calls inside are about this GPU; an error of any kind is a refusal of it."""
        self._calls.device, self._calls.failed = device, []
        try:
            yield
        except CallRefused:
            raise
        except Exception as error:
            logger.debug("Cannot read %s", device, exc_info=True)
            raise CallRefused.unreadable("", error) from error
        finally:
            self._calls.device = ""

    def _sweep(self, now: datetime) -> GpuSweep:
        readings: list[GpuReading] = []
        health: list[HealthReading] = []
        for device in self._devices:
            uuid = device.facts.uuid
            if device.hung is not None:
                readings.append(nvml_calls.broken(device.facts, device.hung))
                continue
            try:
                with self._about(uuid):
                    reading = self._reading(device)
                    self._tier.look(device.handle, reading, now)
                    counts = self._health.of(device.handle, uuid, now.timestamp())
            except CallRefused as refused:
                if refused.code in nvml_calls.LIBRARY:
                    raise
                readings.append(nvml_calls.broken(device.facts, refused.fault))
                # After a loss every handle is suspect: initialise again, find all by UUID.
                self._reinit_wanted = True
                continue
            readings.append(self._with_failed_calls(reading))
            health.append(counts)
        self._tier.end()
        unnamed = self._unnamed
        answering = {gpu.uuid for gpu in readings if gpu.health is Health.OK}
        sweep = GpuSweep(
            gpus=tuple(readings),
            health=tuple(health),
            unnamed=len(unnamed),
            problem=unnamed[0].problem if unnamed else None,
            remedy=unnamed[0].remedy if unnamed else None,
        )
        return self._tier.added_to(sweep, answering)

    def _with_failed_calls(self, reading: GpuReading) -> GpuReading:
        failed = tuple(dict.fromkeys(self._calls.failed))[:MOST_FAILED]
        return replace(reading, failed_calls=failed) if failed else reading

    def _make_ready(self) -> None:
        if not self._open:
            self._initialise()
        elif self._has_news() or self._is_time_to_look():
            self.close()
            self._initialise()

    def _has_news(self) -> bool:
        """Cheap signs that there are other GPUs than those whose handles we hold.

        Most drivers count GPUs only when NVML is initialised; the kernel's own list tells of new
        ones before that. A GPU that could not be opened may be asked again without that.
        """
        count = self._ask("nvmlDeviceGetCount")
        if count != self._counted or _listing() != self._listing:
            return True
        return any(self._answers(index) for index in self._unopened)

    def _is_time_to_look(self) -> bool:
        """Where a GPU is missing, where a handle may be stale, or where nothing tells of news."""
        misses = self._reinit_wanted or len(self._devices) < len(self._facts)
        at = time.monotonic()
        return (misses and at >= self._reinit_at) or (not self._listing and at >= self._relook_at)

    def _answers(self, index: int) -> bool:
        where = position(index)
        if where in self._left_out:
            return False
        try:
            with self._about(where):
                self._must("nvmlDeviceGetUUID", self._must("nvmlDeviceGetHandleByIndex", index))
        except CallRefused as refused:
            if refused.code in nvml_calls.LIBRARY:
                raise
            return False
        return True

    def _initialise(self) -> None:
        began = time.monotonic()
        self._must("nvmlInit")
        self._open, self._reinit_wanted, self._listing = True, False, _listing()
        self._devices, self._unnamed, self._unopened = [], [], []
        self._counted = self._must("nvmlDeviceGetCount")
        for index in range(self._counted):
            try:
                self._devices.append(self._device(index))
            except CallRefused as refused:
                if refused.code in nvml_calls.LIBRARY:
                    raise
                problem = f"GPU {index}: {refused.fault.problem}"
                self._unnamed.append(replace(refused.fault, problem=problem))
                self._unopened.append(index)
        took = time.monotonic() - began
        done = time.monotonic()
        self._reinit_at = done + min(REINIT_MAX_S, max(REINIT_MIN_S, took / REINIT_SHARE))
        self._relook_at = done + min(REINIT_MAX_S, max(RELOOK_MIN_S, took / RELOOK_SHARE))
        self._tier.use.forget_modes()
        self._health.forget()
        self._xids.start({d.facts.uuid: d.handle for d in self._devices if d.hung is None})

    def _device(self, index: int) -> _Device:
        """The device with this index; raises CallRefused if it cannot be opened or named."""
        where = position(index)
        if where in self._left_out:
            raise CallRefused.left_out(self._left_out[where])
        with self._about(where):
            handle = self._must("nvmlDeviceGetHandleByIndex", index)
            uuid = self._must("nvmlDeviceGetUUID", handle)
        facts, wanted = self._facts.setdefault(
            uuid, (GpuReading(uuid=uuid, index=index), set(_STATIC))
        )
        device = _Device(handle, replace(facts, index=index), set(wanted))
        if uuid in self._left_out:
            device.hung = nvml_calls.hung(self._left_out[uuid])
        else:
            with self._about(uuid):
                self._learn(device, Answers(self._calls, handle, device.kept))
        return device

    def _learn(self, device: _Device, answers: Answers) -> None:
        """Read what stays the same and is not known yet; what fails is read again next time."""
        for name in sorted(device.wanted):
            is_answered, value = answers.tried(*_STATIC[name])
            if value is not None:
                device.facts = replace(device.facts, **{name: value})
            if is_answered:
                device.wanted.discard(name)
        self._facts[device.facts.uuid] = device.facts, device.wanted

    def _reading(self, device: _Device) -> GpuReading:
        answers = Answers(self._calls, device.handle, device.kept)
        if device.wanted:
            self._learn(device, answers)
        total, used, reserved = answers.either(*_MEMORY) or (None, None, None)
        use, memory_use = answers.paced(*_USE) or (None, None)
        reading = replace(
            device.facts,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_reserved_bytes=reserved,
            utilization_pct=use,
            memory_utilization_pct=memory_use,
            **{name: answers.paced(*key) for name, key in _CHANGING.items()},
        )
        absent = device.kept.absent
        if absent:
            lacking = tuple(name for name, key in _CALLS.items() if key in absent)
            reading = replace(reading, unsupported=lacking or None)
        if total is not None and total != device.facts.memory_total_bytes:
            device.facts = replace(device.facts, memory_total_bytes=total)
            self._facts[reading.uuid] = device.facts, device.wanted
        return nvml_calls.broken(reading, answers.fault) if answers.is_bad else reading


def is_installed() -> bool:
    """Whether the driver's library is on this machine (it is loaded, not initialised)."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


_LOOK_S = 0.05


def detect(
    now: datetime, patience: Callable[[str], float] = nvml_calls.patience_s
) -> tuple[GpuSweep, list[str]]:
    """One sweep and the versions of the driver. Not for a process that forks afterwards.

    A GPU whose call does not come back is left out of the next try.
    """
    left_out: dict[str, str] = {}
    while True:
        look = Look(now, left_out)
        look.start()
        while look.is_alive():
            look.join(_LOOK_S)
            device, asking = look.probe.asking_about, look.asking
            if asking and time.monotonic() - asking[1] >= patience(asking[0]):
                break
        else:
            if look.error is not None:
                raise look.error
            return look.sweep, look.versions
        if not device or device in left_out:
            fault = nvml_calls.hung(asking[0])
            return GpuSweep(problem=fault.problem, remedy=fault.remedy), []
        left_out[device] = asking[0]


class Look(threading.Thread):
    """One sweep in a thread, which is abandoned if the driver hangs."""

    def __init__(self, now: datetime, left_out: Mapping[str, str]) -> None:
        super().__init__(name="detect", daemon=True)
        self._now = now
        self.probe = NvmlProbe()
        self.probe.leave_out(left_out)
        self.sweep = GpuSweep()
        self.versions: list[str] = []
        self.error: Exception | None = None

    @property
    def asking(self) -> tuple[str, float] | None:
        """The call in progress and its start (monotonic clock)."""
        return self.probe.asking

    def run(self) -> None:
        try:
            self.probe.open()
            self.sweep = self.probe.read(self._now, ())
            self.versions = self.probe.versions()
            self.probe.close()
        except Exception as error:
            self.error = error


def _listing() -> list[str]:
    """The GPUs that the kernel module knows; empty where it does not list them."""
    try:
        return sorted(path.name for path in KERNEL_LIST.iterdir())
    except OSError:
        return []


def _must(name: str, *args: Any) -> Any:
    """The answer as plain values. Whatever goes wrong is a refused call."""
    call: Callable[..., Any] | None = getattr(pynvml, name, None)
    if call is None:
        raise CallRefused(nvml_calls.FUNCTION_NOT_FOUND, f"this pynvml has no {name}", name)
    # The binding wraps functions that return texts: the wrapper only decodes, and strictly.
    call = getattr(call, "__wrapped__", call)
    try:
        return nvml_calls.read(name, call(*args))
    except pynvml.NVMLError as error:
        raise CallRefused(error.value, str(error), name) from None
    except Exception as error:
        raise CallRefused.unreadable(name, error) from error
