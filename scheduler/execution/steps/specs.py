"""Rows -> the runner's spec.json: command, account, environment, folder and limits."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from msgspec import Struct, field

from monitor.models import Gpu
from monitor.owners import rows as os_accounts
from monitor.thresholds import rows as thresholds
from scheduler.execution import probes as probe
from scheduler.execution.policy import PERIOD_S, PIDS, BoundsPolicy, lower_limit, port_blocks
from scheduler.execution.steps import hosts as host_capabilities
from scheduler.facts import people as soft_limits
from scheduler.models import Attempt, Job, JobInput
from scheduler.queue.planner.preemption import PreemptionPolicy
from scheduler.runner import accounts, clearing, files
from scheduler.runner.accounts import (
    Account,
    MissingAccount,
    OwnFolder,
    ReportFiles,
    UnknownAccount,
    own_folder,
)
from scheduler.runner.clearing import WorkerFiles, folder_name
from scheduler.runner.confine import cgroups, locks
from scheduler.runner.confine.cgroups import CgroupParent, find_parent, remove_stale
from scheduler.runner.programs import terminal, worker
from scheduler.runner.spec import Bounds, Spec
from scheduler.terminals.policy import RECONNECT_S

# A block of ports for each attempt, which no other open attempt of the host has.
#
# It is stored with the attempt, and so freed when the attempt ends.


ADDRESS = "127.0.0.1"


class NoPorts(OSError):
    """All blocks are taken. The job starts when one is free."""


def assigned(attempt: Attempt, policy: BoundsPolicy) -> range:
    """The ports of an attempt; chosen and stored at the first call. Empty: jobs get none.

    Raises NoPorts.
    """
    if attempt.port is not None:
        return range(attempt.port, attempt.port + attempt.ports)
    if not policy.ports or attempt.job.model_service_id is not None:
        return range(0)
    still_open = Attempt.objects.filter(host=attempt.host, ended_at=None, port__isnull=False)
    rows = still_open.values_list("port", "ports")
    taken = [range(port, port + count) for port, count in rows if port is not None]
    # Each job begins elsewhere, so that connections of the last one have time to close.
    blocks = port_blocks(policy, [*taken, probe.ephemeral()], start=attempt.pk)
    for block in blocks:
        if probe.are_free(block) and _store(attempt, block):
            return block
    raise NoPorts(
        f"No block of {policy.ports} ports is free from {policy.first_port} to {policy.last_port}."
        " Jobs wait until one is; operators change the range in the policy bounds."
    )


def _store(attempt: Attempt, block: range) -> bool:
    try:
        with transaction.atomic():
            Attempt.objects.filter(pk=attempt.pk).update(port=block.start, ports=len(block))
    except IntegrityError:
        return False
    attempt.port, attempt.ports = block.start, len(block)
    return True


def with_variables(env: dict[str, str], block: range) -> dict[str, str]:
    """The environment with the ports. Variables of torch are only set unless the user did.

    torchrun reads its port from PET_MASTER_PORT.
    """
    if not block:
        return env
    first = str(block.start)
    usual = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": first, "PET_MASTER_PORT": first}
    return {**usual, **env, "GPUCOORD_PORT": first, "GPUCOORD_PORTS": str(len(block))}


CACHED_FOR_S = 2.0
YIELD_FILE = "yield"
# An attempt is written again rarely; the loop waits for it.
TAKE_AWAY_S = 0.5
NO_ENGINE_ACCOUNT = (
    "Slurm runs jobs as their owner only. No OS account of its own is assigned to the owner of this"
    " job on this server; an administrator can assign one in the admin, under OS accounts."
)
GpuNumbers = Mapping[str, tuple[int, str]]


@cache
def _cgroup_parent() -> CgroupParent:
    """Once in a process: it starts one to try it."""
    return find_parent()


class ConfinementLimits(Struct):
    """The isolation features of this machine, probed by `open`, and the limits of each job."""

    host: str
    data: Path
    lock_folder: Path | None
    host_memory_bytes: int | None = None
    place: CgroupParent = field(default_factory=CgroupParent)
    minors: Mapping[str, int] = field(default_factory=dict)
    mps: str | None = None
    _cached: tuple[float, BoundsPolicy, GpuNumbers] | None = None

    def open(self, now: datetime) -> None:
        """Probe the isolation features."""
        self.place = _cgroup_parent()
        remove_stale(self.place, locks.instance_number(str(self.data)), now.timestamp())
        self.minors = cgroups.minors()
        self.mps = cgroups.mps_pipes()

    def record(self, now: datetime) -> None:
        """Store the features for the status page. The caller opens the transaction."""
        policy, _ = self._now()
        folder = str(self.lock_folder) if self.lock_folder else None
        capabilities = probe.describe(
            self.place, minors=len(self.minors), mps=self.mps, locks=folder, policy=policy
        )
        host_capabilities.record(self.host, capabilities, now)

    def bounds(self, attempt: Attempt) -> Bounds:
        """The limits that the runner applies to this attempt."""
        policy, gpus = self._now()
        assigned = [gpus[uuid] for uuid in attempt.gpu_uuids if uuid in gpus]
        job = attempt.job
        place = self.place if policy.cgroup else CgroupParent()
        limits = {
            "cpu": lower_limit(job.cpus, policy.cpus),
            "memory": lower_limit(self._memory(job, policy), policy.memory_bytes),
            "pids": PIDS,
        }
        hidden = self._hidden({pci for _, pci in assigned}) if policy.hide_gpus else []
        capped = bool(assigned) and not self._by_mps(attempt)
        return Bounds(
            lock_folder=str(self.lock_folder) if self.lock_folder and assigned else "",
            gpus=[index for index, _ in assigned],
            alone=job.exclusive,
            instance=locks.instance_number(str(self.data)),
            cgroup=list(place.for_(_controllers(place, limits, hides=bool(hidden)))),
            scope=place.scope,
            cpus=limits["cpu"],
            memory_bytes=None if limits["memory"] is None else int(limits["memory"]),
            process_memory_bytes=self._process_memory(job, policy),
            pids=PIDS,
            hidden=hidden,
            share_pct=job.share_pct if capped else None,
            period_s=PERIOD_S,
            log_bytes=policy.log_mib * 1024**2,
        )

    def _memory(self, job: Job, policy: BoundsPolicy) -> int | None:
        if job.memory_bytes is not None or job.model_service_id is not None:
            return job.memory_bytes
        return policy.undeclared_bytes(self.host_memory_bytes)

    def _process_memory(self, job: Job, policy: BoundsPolicy) -> int | None:
        """Models are exempt, and a job may have in one process what it declares."""
        limit = policy.process_bytes(self.host_memory_bytes)
        if limit is None or job.model_service_id is not None:
            return None
        return max(limit, job.memory_bytes or 0)

    def variables(self, attempt: Attempt) -> dict[str, str]:
        """Environment variables for the job."""
        if not self._by_mps(attempt) or self.mps is None:
            return {}
        return {
            "CUDA_MPS_PIPE_DIRECTORY": self.mps,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(attempt.job.share_pct),
        }

    def _by_mps(self, attempt: Attempt) -> bool:
        return bool(self.mps and attempt.job.share_pct and attempt.gpu_uuids)

    def _hidden(self, assigned: set[str]) -> list[list[int]]:
        """Device numbers of all other GPUs; [] if the assigned GPUs have no known device."""
        own = {cgroups.short_pci_id(pci) for pci in assigned if pci}
        if len(own) < len(assigned) or not own <= set(self.minors):
            return []
        return [[cgroups.NVIDIA_MAJOR, m] for pci, m in self.minors.items() if pci not in own]

    def policy(self) -> BoundsPolicy:
        return self._now()[0]

    def _now(self) -> tuple[BoundsPolicy, GpuNumbers]:
        """Read again when it is older than CACHED_FOR_S: many jobs may start at once."""
        at = time.monotonic()
        if self._cached is None or at - self._cached[0] > CACHED_FOR_S:
            rows = Gpu.objects.filter(host=self.host).values_list("uuid", "index", "pci_id")
            gpus = {uuid: (index, pci) for uuid, index, pci in rows}
            self._cached = (at, thresholds.current(BoundsPolicy), gpus)
        return self._cached[1], self._cached[2]


def _controllers(
    place: CgroupParent, limits: Mapping[str, float | None], *, hides: bool
) -> set[str]:
    """Those of version 1 that these limits need."""
    names = {name for name, limit in limits.items() if limit is not None}
    return {*names, "devices"} if hides and "bpf" not in place.can else names


class SpecWriter(Struct, frozen=True, kw_only=True):
    """Prepares attempts' folders under `data`.

    checkpoints: folder of checkpoints, if they are not in the jobs' folders.
    """

    data: Path
    run_as: str
    grace_s: float
    wake_folder: Path
    checkpoints: Path | None = None
    # Paths that jobs of ordinary users can't open while they share the service's account.
    closed: tuple[Path, ...] = ()
    limits: ConfinementLimits | None = None
    # Whether other hosts see the checkpoints, or there are none.
    shares_checkpoints: bool = True

    def folder(self, attempt: Attempt) -> Path:
        return files.attempt_folder(self.data, attempt.job_id, attempt.number)

    def write(self, attempt: Attempt) -> Path:
        """Make the folder with its spec.json, if that is not done; returns the folder."""
        folder = self.folder(attempt)
        if folder.is_symlink():
            # Of a task of another engine that never began. Its account can write there.
            folder.unlink()
        written = files.read_json(folder / files.SPEC)
        if written is not None and written.get("nonce") == attempt.nonce:
            return folder
        if written is not None:
            # Of an attempt whose row was lost in a power cut.
            _take_away(folder)
        files.make_folder(folder)
        if attempt.job.has_input:
            files.write_private(folder / files.STDIN, data_of(attempt.job))
        spec = self._spec(attempt)
        if self.limits:
            block = assigned(attempt, self.limits.policy())
            spec = replace(spec, env=with_variables(spec.env, block))
        files.write_json(folder / files.SPEC, spec.to_json())
        return folder

    def stays_here(self, job: Job) -> bool:
        """Whether the job has data in a checkpoint folder that other hosts do not see."""
        return not self.shares_checkpoints and self.has_saved(job)

    def write_for_engine(self, attempt: Attempt) -> tuple[Path, Account]:
        """The folder of an attempt that another engine runs, for a runner with the job's account.

        It belongs to that account, in a folder of the service's. A link in the folder of the
        job's logs leads to it. Raises MissingAccount.
        """
        account = self._in_group(attempt.job)
        if account.uid is None or account.gid is None or account.uid == 0:
            raise MissingAccount(NO_ENGINE_ACCOUNT)
        own = self._own_folder(attempt.job, account)
        own.make(account.uid, account.gid)
        folder = own.attempt(attempt.number)
        written = files.read_json(folder / files.SPEC)
        if written is None or written.get("nonce") != attempt.nonce:
            self._make_anew(folder, attempt, account.uid, account.gid)
        link = self.folder(attempt)
        if not link.is_symlink():
            files.make_folder(link.parent)
            link.symlink_to(folder)
        return folder, account

    def _make_anew(self, folder: Path, attempt: Attempt, uid: int, gid: int) -> None:
        """Written beside it and renamed, so that a killed writer leaves no part of it."""
        part = folder.with_name(f"{folder.name}.part")
        for path in (part, folder):
            _take_away(path)
        part.mkdir(mode=0o700)
        spec = self._spec(attempt)
        bounds = Bounds(log_bytes=int(spec.bounds.get("log_bytes", 0)))
        yields = str(folder / YIELD_FILE)
        spec = replace(
            spec,
            uid=None,
            gid=None,
            groups=None,
            wake_folder="",
            bounds=bounds.to_json(),
            # The engine's own limits apply, unless the shell of the user had others.
            limits={n: v for n, v in spec.limits.items() if n in attempt.job.limits},
            yield_file=yields,
            stdin_file=str(folder / files.STDIN) if attempt.job.has_input else "",
            env={**spec.env, "GPUCOORD_YIELD_FILE": yields},
        )
        if attempt.job.has_input:
            files.write_private(part / files.STDIN, data_of(attempt.job))
        files.write_json(part / files.SPEC, spec.to_json())
        for path in (*part.iterdir(), part):
            os.chown(path, uid, gid, follow_symlinks=False)
        part.rename(folder)

    def has_saved(self, job: Job) -> bool:
        """Whether something is in its checkpoint folder."""
        try:
            own = own_folder(self.data, job.pk, uid=self._uid(job), chosen=self.checkpoints)
            return any(own.checkpoint.iterdir())
        except (OSError, LookupError):
            return False

    def _uid(self, job: Job) -> int | None:
        """Of its account; while that is unknown, of its newest attempt. Raises LookupError."""
        try:
            return self._account(job).uid
        except UnknownAccount:
            newest = job.attempts.order_by("-number").first()
            spec = files.read_json(self.folder(newest) / files.SPEC) if newest else None
            if spec is None:
                raise
            uid: int | None = spec["uid"]
            return uid

    def given(self, attempt: Attempt) -> ReportFiles:
        """Of the uid that it was started with: its account or its service may be removed since."""
        spec = files.read_json(self.folder(attempt) / files.SPEC)
        uid = spec["uid"] if spec is not None else self._account(attempt.job).uid
        own = own_folder(self.data, attempt.job_id, uid=uid, chosen=self.checkpoints)
        return own.given_files(attempt.number)

    def worker_files(self, batch: int, attempt: Attempt) -> WorkerFiles | None:
        """The files that the workers of a batch share on this host, by the attempt of one of them.

        None: it has no folder yet.
        """
        spec = files.read_json(self.folder(attempt) / files.SPEC)
        if spec is None:
            return None
        return WorkerFiles(self._batch_folder(batch, spec["uid"]).given)

    def _batch_folder(self, batch: int, uid: int | None) -> OwnFolder:
        return own_folder(self.data, folder_name(batch), uid=uid, chosen=self.checkpoints)

    def _spec(self, attempt: Attempt) -> Spec:
        job = attempt.job
        account = self._in_group(job)
        own = self._own_folder(job, account)
        own.make(account.uid, account.gid)
        opened = [own.checkpoint, own.given]
        argv = _argv(attempt, own, account)
        if job.worker_batch is not None:
            shared = self._batch_folder(job.worker_batch, account.uid)
            shared.make(account.uid, account.gid)
            opened.append(shared.given)
            program = accounts.python_program(Path(worker.__file__), account)
            argv = [*program, str(shared.given), "--", *argv]
        is_closed = self._is_closed(job)
        if is_closed:
            own.yields.mkdir(mode=0o700, exist_ok=True)
        log = self.folder(attempt) / files.LOG
        env = accounts.environment(
            account,
            environment_of(job) | job.env,
            job_id=job.pk,
            attempt=attempt.number,
            nonce=attempt.nonce,
            gpu_uuids=attempt.gpu_uuids,
            more={**self._job_variables(attempt, own, apart=is_closed), **self._variables(attempt)},
        )
        return Spec(
            job_id=job.pk,
            attempt=attempt.number,
            nonce=attempt.nonce,
            argv=argv,
            cwd=job.cwd or accounts.start_folder(account),
            env=env,
            account=account.name,
            uid=account.uid,
            gid=account.gid,
            groups=list(account.groups),
            umask=job.umask,
            limits=_limits(job),
            time_limit_s=job.time_limit_s,
            grace_s=self.grace_s,
            wake_folder=str(self.wake_folder),
            yield_file=str(own.yield_file(attempt.number, apart=is_closed)),
            yield_signal=job.yield_signal,
            stdin_file=str(self.folder(attempt) / files.STDIN) if job.has_input else "",
            bounds=self.limits.bounds(attempt).to_json() if self.limits else {},
            closed=[str(path) for path in self.closed] if is_closed else [],
            opened=[str(path) for path in (*opened, log)] if is_closed else [],
            readable=[str(own.yields)] if is_closed else [],
        )

    def _is_closed(self, job: Job) -> bool:
        """A superuser's jobs are those of an administrator: nothing is closed to them."""
        return bool(self.closed) and os.geteuid() != 0 and not job.owner.is_superuser

    def _account(self, job: Job) -> Account:
        if job.model_service_id is not None:
            # Loaded for models only.
            from scheduler.language_models.model_services import step

            return step.account_of(job, self.run_as)
        return account_of_jobs(job.owner, self.run_as)

    def _in_group(self, job: Job) -> Account:
        """The account with the primary group that the user chose. Raises MissingAccount.

        Without root, jobs keep the group of the service; the submission said so.
        """
        return accounts.in_group(self._account(job), job.primary_group)

    def _own_folder(self, job: Job, account: Account) -> OwnFolder:
        return own_folder(self.data, job.pk, uid=account.uid, chosen=self.checkpoints)

    def _variables(self, attempt: Attempt) -> dict[str, str]:
        return self.limits.variables(attempt) if self.limits else {}

    def _job_variables(self, attempt: Attempt, own: OwnFolder, *, apart: bool) -> dict[str, str]:
        """How the job learns that it is to leave, and where it saves its work."""
        given = own.given_files(attempt.number)
        environment = {
            "GPUCOORD_YIELD_FILE": str(own.yield_file(attempt.number, apart=apart)),
            "GPUCOORD_GRACE_S": f"{self._grace_s(attempt.job):g}",
            "GPUCOORD_CHECKPOINT_DIR": str(own.checkpoint),
            "GPUCOORD_PROGRESS_FILE": str(given.progress),
            "GPUCOORD_RESULT_FILE": str(given.result),
        }
        if attempt.job.array_index is not None:
            environment["GPUCOORD_ARRAY_INDEX"] = str(attempt.job.array_index)
        return environment

    def _grace_s(self, job: Job) -> float:
        if job.grace_s is None:
            return self.grace_s
        return min(job.grace_s, thresholds.current(PreemptionPolicy).most_grace_minutes * 60)


def _argv(attempt: Attempt, own: OwnFolder, account: Account) -> list[str]:
    job = attempt.job
    if job.model_service_id is not None:
        from scheduler.language_models.model_services import step

        return list(step.launch(attempt).argv)
    if not job.interactive:
        return list(job.argv)
    patience_s = RECONNECT_S
    place = own.given_files(attempt.number).terminal
    program = accounts.python_program(Path(terminal.__file__), account)
    return [*program, str(place.parent), place.name, str(patience_s), "--", *job.argv]


def _limits(job: Job) -> dict[str, int]:
    """Soft limits of a job, never those of the service; models keep them for their connections."""
    return {} if job.model_service_id is not None else soft_limits.complete(job.limits)


def account_of_jobs(owner: User, run_as: str) -> Account:
    """The account of the user's jobs. Raises MissingAccount or UnknownAccount."""
    return accounts.account_for(
        owner.username,
        account=os_accounts.name_of(owner),
        superuser=owner.is_superuser,
        run_as=run_as,
    )


def environment_of(job: Job) -> dict[str, str]:
    """The environment that the command line captured; {} = nothing."""
    if not job.has_environment:
        return {}
    return dict(JobInput.objects.values_list("environment", flat=True).get(pk=job.array or job.pk))


def data_of(job: Job) -> bytes:
    """b"" = it has none."""
    if not job.has_input:
        return b""
    return bytes(JobInput.objects.get(pk=job.array or job.pk).data)


def _take_away(folder: Path) -> None:
    """Take away what is there. An account may fill the folder meanwhile, or have nested others.

    What cannot be deleted now is deleted with the files of the job.
    """
    if os.path.lexists(folder):
        if not clearing.move_aside(folder.parent, folder.name):
            raise OSError(errno.EBUSY, "it cannot be moved away", str(folder))
        clearing.empty(folder.parent, time.monotonic() + TAKE_AWAY_S)
