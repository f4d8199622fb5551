"""The values of a job as they go out, declared once: REST, `gpucoord show`, its page and agents.

Standard library only, because the command line must start fast. The record that has them is
`JobRecord` in `scheduler/jobs/pages/serialise.py`: the job's row, and what follows from other rows.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

from monitor.facts.formats import AnswerField
from scheduler.facts.jobs import JobState

_listed = partial(AnswerField, is_listed=True)
_private = partial(AnswerField, is_private=True)

# In the order of the rows of `gpucoord show`.
JOB_ANSWERS = (
    _listed("id", int, label="job", for_agents=True),
    _listed("name", str, for_agents=True),
    _listed("owner", str, source="owner.username", for_agents=True),
    _listed(
        "agent",
        str | None,
        "The agent of the owner that submitted it.",
        source="agent.name",
        label="agent",
        for_agents=True,
    ),
    _listed("state", JobState, label="state", for_agents=True),
    _listed(
        "outcome",
        str | None,
        "succeeded, failed, cancelled, timed_out, lost, preempted or skipped; "
        "null until it has ended.",
        for_agents=True,
    ),
    _listed("priority", int, label="priority", for_agents=True),
    _listed(
        "requested",
        dict[str, Any],
        "gpus, gpu_memory_bytes, exclusive and further requests.",
        label="requested",
    ),
    AnswerField("time_limit_s", int | None, label="time limit", title="Time limit", missing="none"),
    AnswerField("estimate_s", int | None, title="Estimate"),
    _listed("submitted_at", datetime, label="submitted", for_agents=True),
    _listed("started_at", datetime | None, label="started", for_agents=True),
    _listed("ended_at", datetime | None, label="ended", for_agents=True),
    AnswerField("exit_code", int | None, label="exit code", for_agents=True),
    AnswerField("signal", int | None, label="signal"),
    # The text may name the folder or the program.
    _private("problem", str | None, label="problem", for_agents=True),
    _listed("gpus", list[str], "UUIDs of the current or last GPUs.", label="GPUs"),
    _listed(
        "host", str | None, "Host of the current or last run.", source="attempt.host", label="host"
    ),
    _listed(
        "contact_lost_since",
        datetime | None,
        "Last reading of its host, if that is silent: the job may still run.",
        label="contact lost",
    ),
    AnswerField(
        "checkpoint_host",
        str | None,
        "Host that has its checkpoint, where a waiting job runs again.",
        source="home",
    ),
    _listed(
        "progress",
        float | None,
        "0 to 1; null: the job reports none.",
        source="attempt.progress",
        for_agents=True,
    ),
    _private(
        "progress_message", str | None, "As the job reports it.", source="attempt.progress_message"
    ),
    _listed(
        "ends_p50_at",
        datetime | None,
        "Expected end, by its progress, else by its estimate, limit or history.",
        source="ends.p50",
    ),
    _listed(
        "ends_p90_at", datetime | None, "90 % quantile of the expected end.", source="ends.p90"
    ),
    _listed("reason", str | None, "Why it waits, in one sentence.", for_agents=True),
    _private("command", str | None, blank="", label="command"),
    _private("argv", list[str] | None),
    AnswerField("begin_at", datetime | None, title="Not before"),
    _private("cwd", str | None, blank="", label="folder", title="Folder", missing="home directory"),
    _private(
        "env_names", list[str] | None, "Values are never shown.", title="Variables", missing="none"
    ),
    _private("limits", dict[str, int | str] | None, "Requested soft limits.", title="Soft limits"),
    _private(
        "group",
        str | None,
        "Requested primary group; null: the account's own.",
        source="primary_group",
        label="group",
        title="Primary group",
    ),
    _private(
        "left_out",
        dict[str, str] | None,
        "Parts of the submitting shell that the job does not get, with the reason.",
        label="left out",
        title="Left out",
    ),
    _listed("task_class", str, "script; prompts of model services are llm."),
    _listed("task_type", str | None, "transcribe, embed or process, as its script says."),
    _listed("script", str | None, "The registered script that it runs."),
    _private("script_args", dict[str, Any] | None),
    _listed("url", str),
    AnswerField("preemptible", bool),
    AnswerField("requeue", bool),
    AnswerField("yield_signal", str | None),
    AnswerField("grace_s", int | None),
    AnswerField("retries", int),
    AnswerField("failures", int, "Number of failures that were retried."),
    AnswerField("requeues", int, "Number of requeues after a yield."),
    AnswerField("retry_at", datetime | None),
    AnswerField("pause_on_quick_failure", bool),
    AnswerField("array", int | None, "The array's first job.", label="array"),
    AnswerField("array_index", int | None),
    AnswerField("after", list[int], label="after"),
    AnswerField("after_success", list[int]),
    _listed("tags", dict[str, str], "Project, comment and the like.", label="tags", title="Tags"),
    AnswerField("held", str | None, "Reason of the hold, until the job is released.", label="held"),
    AnswerField(
        "held_after",
        int | None,
        "It was held after quick failures, the last of them of this job. Jobs with the"
        " same number are released together.",
    ),
    _private("held_log", str | None, "The last lines of the log of that job."),
    AnswerField(
        "predicted_start_at", datetime | None, "The latest predicted start.", for_agents=True
    ),
    AnswerField("first_predicted_start_at", datetime | None, "The first one."),
    AnswerField(
        "prediction_error_s",
        float | None,
        "Actual minus first predicted start; negative: earlier.",
    ),
    AnswerField(
        "gpu_memory_is_learned",
        bool,
        "The job declared no GPU memory; it got what earlier runs needed.",
    ),
    AnswerField(
        "efficiency",
        str | None,
        "Requested and used GPU memory, and the utilisation, in one line.",
        for_agents=True,
    ),
    AnswerField("cancel_requested_at", datetime | None),
    AnswerField("cancelled_by", str | None),
    AnswerField("cpu_s", float | None, source="attempt.cpu_s"),
    AnswerField("peak_memory_bytes", int | None, source="attempt.peak_memory_bytes"),
    AnswerField("log_bytes", int | None, source="attempt.log_bytes"),
)

LISTED = tuple(field for field in JOB_ANSWERS if field.is_listed)

# Of each attempt; their record is its row.
ATTEMPT_ANSWERS = (
    AnswerField("number", int),
    AnswerField("host", str),
    AnswerField(
        "engine",
        str,
        "local: gpucoord itself; slurm: `host` submitted it to Slurm.",
        blank="local",
    ),
    AnswerField("engine_ref", str | None, "Its number in Slurm."),
    AnswerField("node", str | None, "The node of Slurm that ran it."),
    AnswerField("account", str, "OS account of the job."),
    AnswerField("gpus", list[str], source="gpu_uuids"),
    AnswerField("port", int | None, "First of its TCP ports, as GPUCOORD_PORT. null: it has none."),
    AnswerField("ports", int, "Number of its ports, as GPUCOORD_PORTS."),
    AnswerField("placed_at", datetime),
    AnswerField("started_at", datetime | None),
    AnswerField("ended_at", datetime | None),
    AnswerField("outcome", str | None),
    _private("problem", str | None),
    AnswerField("exit_code", int | None),
    AnswerField("signal", int | None),
    AnswerField("cpu_s", float | None),
    AnswerField("peak_memory_bytes", int | None),
    AnswerField("log_bytes", int | None),
    AnswerField(
        "log_removed_at",
        datetime | None,
        "Logs and checkpoints of ended jobs are kept for a while.",
        source="files_gone_at",
    ),
)
