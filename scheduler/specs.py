"""Rows -> the runner's order: what to run, as whom, with which environment, in its folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from monitor import policies
from scheduler.bounding import Bounder
from scheduler.models import Attempt, Job
from scheduler.policy.preemption import PreemptionPolicy
from scheduler.runner import accounts, files
from scheduler.runner.accounts import Account
from scheduler.runner.own_folders import OwnFolder, own_folder
from scheduler.runner.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecWriter:
    """Prepares attempts' folders under `data`.

    checkpoints: where what jobs save is kept, if not near the rest.
    """

    data: Path
    run_as: str
    grace_s: float
    wake_folder: Path
    checkpoints: Path | None = None
    bounder: Bounder | None = None

    def folder(self, attempt: Attempt) -> Path:
        return files.attempt_folder(self.data, attempt.job_id, attempt.number)

    def write(self, attempt: Attempt) -> Path:
        """Make the folder with its spec.json, if that is not done; returns the folder."""
        folder = self.folder(attempt)
        found = files.read_json(folder / files.SPEC)
        if found is not None and found.get("nonce") == attempt.nonce:
            return folder
        if found is not None:
            # Of an attempt whose row a power cut took.
            shutil.rmtree(folder)
        files.make_folder(folder)
        files.write_json(folder / files.SPEC, self._spec(attempt).to_json())
        return folder

    def has_saved(self, job: Job) -> bool:
        """Whether something is in its checkpoint folder."""
        try:
            account = self._account(job)
            return any(self._own_folder(job, account).checkpoint.iterdir())
        except (OSError, LookupError):
            return False

    def _spec(self, attempt: Attempt) -> Spec:
        job = attempt.job
        account = self._account(job)
        own = self._own_folder(job, account)
        own.make(account.uid, account.gid)
        env = accounts.environment(
            account,
            job.env,
            job_id=job.pk,
            attempt=attempt.number,
            nonce=attempt.nonce,
            gpu_uuids=attempt.gpu_uuids,
            more={**self._told(attempt, own), **self._variables(attempt)},
        )
        return Spec(
            job_id=job.pk,
            attempt=attempt.number,
            nonce=attempt.nonce,
            argv=job.argv,
            cwd=job.cwd or accounts.start_folder(account),
            env=env,
            account=account.name,
            uid=account.uid,
            gid=account.gid,
            groups=list(account.groups),
            time_limit_s=job.time_limit_s,
            grace_s=self.grace_s,
            wake_folder=str(self.wake_folder),
            yield_file=str(own.yield_file(attempt.number)),
            yield_signal=job.yield_signal,
            bounds=self.bounder.bounds(attempt).to_json() if self.bounder else {},
        )

    def _account(self, job: Job) -> Account:
        return accounts.account_for(
            job.owner.username, superuser=job.owner.is_superuser, run_as=self.run_as
        )

    def _own_folder(self, job: Job, account: Account) -> OwnFolder:
        return own_folder(self.data, job.pk, uid=account.uid, chosen=self.checkpoints)

    def _variables(self, attempt: Attempt) -> dict[str, str]:
        return self.bounder.variables(attempt) if self.bounder else {}

    def _told(self, attempt: Attempt, own: OwnFolder) -> dict[str, str]:
        """How the job learns that it is to leave, and where it saves its work."""
        told = {
            "GPUCOORD_YIELD_FILE": str(own.yield_file(attempt.number)),
            "GPUCOORD_GRACE_S": f"{self._grace_s(attempt.job):g}",
            "GPUCOORD_CHECKPOINT_DIR": str(own.checkpoint),
        }
        if attempt.job.array_index is not None:
            told["GPUCOORD_ARRAY_INDEX"] = str(attempt.job.array_index)
        return told

    def _grace_s(self, job: Job) -> float:
        if job.grace_s is None:
            return self.grace_s
        return min(job.grace_s, policies.current(PreemptionPolicy).most_grace_minutes * 60)
