"""Rows -> the runner's order: what to run, as whom, with which environment, in its folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from scheduler.models import Attempt, Job
from scheduler.runner import accounts, files
from scheduler.runner.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecWriter:
    """Prepares attempts' folders under `data`."""

    data: Path
    run_as: str
    grace_s: float
    wake_folder: Path

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

    def _spec(self, attempt: Attempt) -> Spec:
        job = attempt.job
        account = accounts.account_for(
            job.owner.username, superuser=job.owner.is_superuser, run_as=self.run_as
        )
        env = accounts.environment(
            account,
            job.env,
            job_id=job.pk,
            attempt=attempt.number,
            nonce=attempt.nonce,
            gpu_uuids=attempt.gpu_uuids,
            more=_told(job),
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
        )


def _told(job: Job) -> dict[str, str]:
    """What only some jobs are told."""
    return {} if job.array_index is None else {"GPUCOORD_ARRAY_INDEX": str(job.array_index)}
