"""The shapes of the job API: what comes in, and the fields that go out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import ConfigDict, Field

from scheduler.jobs import JobState


class NewJobBody(Schema):
    """What to run, and what it needs. Either `command` or `argv`; all else may be left out."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "command": "python train.py --epochs 3",
                    "gpus": 1,
                    "gpu_memory": "20GiB",
                    "time_limit": "2h",
                }
            ]
        },
    )

    command: str | None = Field(None, description="A shell line: runs as /bin/sh -c COMMAND.")
    argv: list[str] | None = Field(None, description="A program and its arguments: no shell.")
    name: str | None = Field(None, description="Default: the program and its first argument.")
    priority: int = Field(3, description="5 urgent, 4 high, 3 normal, 2 low, 1 background.")
    gpus: int = Field(1, description="How many; 0 is a job without a GPU.")
    gpu_memory: int | str | None = Field(
        None, description='On each GPU: "20GiB", or a number of bytes.'
    )
    exclusive: bool = Field(False, description="No other job on the same GPUs.")
    estimate: int | float | str | None = Field(
        None, description='How long you think it takes: "2h", or seconds.'
    )
    time_limit: int | float | str | None = Field(
        None, description='Stopped after this: "2h", or seconds.'
    )
    capability: float | int | str | None = Field(
        None, description='The least compute capability: "8.0".'
    )
    model: str | None = Field(
        None, description="Words of the GPU's name, or a pattern: H100, RTX*."
    )
    power: float | int | None = Field(None, description="The least power rank of a GPU.")
    on_gpu: int | str | None = Field(None, description="This GPU and no other: its number or UUID.")
    gpu_share: int | None = Field(
        None, description="The most of a shared GPU's time that it may take, in percent."
    )
    cpus: float | int | None = Field(
        None, description="The most CPUs that its processes get together."
    )
    memory: int | str | None = Field(
        None, description='The most host memory: "16GiB", or bytes. Who takes more is killed.'
    )
    preemptible: bool = Field(
        False, description="It may be asked to yield at any time, for jobs of a higher class."
    )
    requeue: bool = Field(
        False, description="Run it again after it yielded, though it did not exit with 85."
    )
    yield_signal: str | None = Field(
        None, description="Sent first when it is to yield: USR1, USR2, INT, TERM or HUP."
    )
    grace: int | float | str | None = Field(
        None, description='From being asked to yield to SIGKILL: "60s", or seconds.'
    )
    retries: int = Field(0, description="How often it is tried again after a failure.")
    begin: str | None = Field(
        None, description='Not before this: "22:00", "2026-03-02 22:00", "in 2h" or ISO 8601.'
    )
    after: int | list[int] | None = Field(None, description="Jobs that must have ended.")
    after_success: int | list[int] | None = Field(
        None, description="Jobs that must have succeeded."
    )
    array: str | None = Field(
        None, description='A job for each index: "0-9", "1,3,5", "0-99%4" (4 at a time).'
    )
    array_limit: int | None = Field(None, description="How many of the array may run at a time.")
    env: dict[str, str] | None = Field(None, description="Variables; values are never shown again.")
    cwd: str | None = Field(None, description="The folder to start in; default: home.")


class Submitted(Schema):
    """Of an array: its first job."""

    id: int
    state: JobState
    url: str
    array: list[int] | None = Field(None, description="The jobs of the array, in order.")


class BlockerBody(Schema):
    """A reason why the job waits."""

    code: str
    text: str
    tier: str = Field(
        "",
        description="needs a person, not yet, my limits, state of the machine, others are there.",
    )
    requested: str | None = None
    available: str | None = None
    holder: str | None = None
    until: datetime | None = None


class AttemptBody(Schema):
    number: int
    host: str
    account: str = Field(description="The account of the machine it ran as.")
    gpus: list[str]
    placed_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    problem: str | None
    exit_code: int | None
    signal: int | None
    cpu_s: float | None
    peak_memory_bytes: int | None
    log_bytes: int | None
    log_removed_at: datetime | None = Field(
        description="Logs and checkpoints of ended jobs are kept for a while."
    )


class JobLine(Schema):
    """A job as everybody may see it."""

    id: int
    name: str
    owner: str
    state: JobState
    outcome: str | None = Field(
        description="succeeded, failed, cancelled, timed_out, lost, preempted or skipped; "
        "null until it has ended."
    )
    priority: int
    gpus: list[str] = Field(description="UUIDs of the GPUs that it has, or had last.")
    requested: dict[str, Any] = Field(
        description="gpus, gpu_memory_bytes, exclusive; and what else was asked for."
    )
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    url: str


class JobBody(JobLine):
    """A job in full. Fields that only its owner and operators may see are null for others."""

    exit_code: int | None
    signal: int | None
    problem: str | None
    blockers: list[BlockerBody]
    command: str | None
    argv: list[str] | None
    cwd: str | None
    env_names: list[str] | None = Field(description="Values are never shown.")
    estimate_s: int | None
    time_limit_s: int | None
    preemptible: bool
    requeue: bool
    yield_signal: str | None
    grace_s: int | None
    retries: int
    failures: int = Field(description="So often it failed, and was tried again.")
    requeues: int = Field(description="So often it yielded, and was put back into the queue.")
    begin_at: datetime | None
    retry_at: datetime | None
    held: str | None = Field(description="Why it is held back until a person lets it go.")
    after: list[int]
    after_success: list[int]
    array: int | None = Field(description="The array's first job.")
    array_index: int | None
    cancel_requested_at: datetime | None
    cancelled_by: str | None
    cpu_s: float | None
    peak_memory_bytes: int | None
    log_bytes: int | None
    attempts: list[AttemptBody]


class JobPage(Schema):
    jobs: list[JobLine]
    total: int
    next: str | None = Field(description="The address of the next page.")


class Cancelled(Schema):
    id: int
    state: JobState
    cancelled: bool = Field(description="False: there was nothing left to do.")


class Held(Schema):
    id: int
    state: JobState
    held: str | None = Field(description="Why it does not start; null: it is not held.")


class FactorBody(Schema):
    """A part of what decides about its place."""

    name: str
    value: float = Field(description="0..1; more is sooner.")
    weight: float
    text: str


class WhyBody(Schema):
    """Why a job waits, and when it may start. Times are estimates: they change as jobs end."""

    id: int
    name: str
    state: JobState
    text: str = Field(description="Where it is and why, in one sentence.")
    blockers: list[BlockerBody]
    position: int | None = Field(description="1 is served next; null: it does not wait.")
    starts_p50: datetime | None = Field(description="As likely earlier as later; null: unknown.")
    starts_p90: datetime | None = Field(description="Nine times of ten before this.")
    factors: list[FactorBody]


class WhatIfBody(Schema):
    """What would become of a job, had it been submitted now. Nothing was submitted."""

    starts_now: bool
    blockers: list[BlockerBody]
    position: int | None
    starts_p50: datetime | None
    starts_p90: datetime | None
