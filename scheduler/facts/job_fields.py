"""The fields of a job, declared once: REST, the form, `gpucoord submit`, the admin and the docs.

Standard library only, because the command line must start fast. A new field needs an entry here,
an attribute of NewJob, a column of Job and its migration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from monitor.facts.formats import GIB
from scheduler.facts.field_types import (
    ARGUMENTS,
    ARGV,
    CAPABILITY,
    COMMAND,
    DURATION,
    FLAG,
    FOLDER,
    GPU,
    GRACE,
    GROUP,
    HOST,
    INDICES,
    INPUT,
    JOBS,
    LEFT_OUT,
    LIMITS,
    LONGEST_NAME,
    MOMENT,
    NAME,
    NOTICES,
    PATTERN,
    PRIORITY,
    SCRIPT,
    SIGNAL,
    SIZE,
    TAGS,
    UMASK,
    VARIABLES,
    Door,
    Group,
    JobField,
    integer,
    number,
)
from scheduler.facts.jobs import NORMAL_PRIORITY, NewJob

# The fields of a job about its start, retries, preemption and notices. Standard library only.


MOST_RETRIES = 20
MOST_AT_ONCE = 32_767

START_FIELDS = (
    JobField(
        name="begin",
        type=MOMENT,
        label="Earliest start",
        help="Earliest start: 22:00, tomorrow 06:00, 2026-03-02 22:00, in 2h or ISO 8601.",
        expected='Write a time such as "22:00" or "2026-03-02 22:00", or "in 2h".',
        group=Group.START,
        example="22:00",
        attribute="begin_at",
        is_repeated=False,
    ),
    JobField(
        name="notify",
        type=NOTICES,
        label="Notify me when",
        help="Events of this job that you are notified of, beside those of your account:"
        " finished, failed, preempted, starts_soon.",
        group=Group.DETAILS,
        example="finished",
        attribute="notify",
    ),
    JobField(
        name="after_success",
        type=JOBS,
        label="Start after success of jobs",
        help="Start after the success of these jobs, e.g. 12, 13.",
        group=Group.START,
    ),
    JobField(
        name="after",
        type=JOBS,
        label="Start after end of jobs",
        help="Start after the end of these jobs, whatever their outcome.",
        group=Group.START,
    ),
    JobField(
        name="array",
        type=INDICES,
        label="Array indices",
        help="A job for each index: 0-9, 1,3,5 or 0-99%4 (4 at a time)."
        " Each job finds its index in GPUCOORD_ARRAY_INDEX.",
        expected='Write indices such as "0-9" or "1,3,5".',
        group=Group.START,
        example="0-9",
        attribute="array",
        stored_as="",
    ),
    JobField(
        name="array_limit",
        type=integer(1, MOST_AT_ONCE),
        label="Array: jobs at a time",
        help="Maximum number of jobs of the array that run at the same time.",
        expected="Write how many may run at a time, 1 or more.",
        group=Group.START,
        attribute="array_limit",
        is_repeated=False,
    ),
    JobField(
        name="retries",
        type=integer(0, MOST_RETRIES),
        label="Retries",
        help="Retries after a failure; the pause doubles."
        " A job that ran out of GPU memory requests 25 % more.",
        expected=f"Write how often it may be tried again, 0 to {MOST_RETRIES}.",
        group=Group.START,
        default=0,
        attribute="yield_options.retries",
    ),
    JobField(
        name="pause_on_quick_failure",
        type=FLAG,
        label="Hold further jobs after quick failures",
        help="Holds your further jobs of the same program when 3 in a row fail within 30 s of"
        " their start; your notification settings have both numbers.",
        group=Group.START,
        default=False,
        attribute="pause_on_quick_failure",
    ),
    JobField(
        name="preemptible",
        type=FLAG,
        label="Preemptible: more important jobs may interrupt this job",
        help="More important jobs may interrupt this job.",
        group=Group.YIELD,
        default=False,
        attribute="yield_options.preemptible",
    ),
    JobField(
        name="requeue",
        type=FLAG,
        label="Requeue after an interruption",
        help="Run it again after an interruption, even if it did not exit with 85.",
        group=Group.YIELD,
        default=False,
        attribute="yield_options.requeue",
    ),
    JobField(
        name="yield_signal",
        type=SIGNAL,
        label="Notify via",
        help="Signal sent with a yield request: USR1, USR2, INT, TERM or HUP.",
        expected="Write a signal such as USR1.",
        group=Group.YIELD,
        attribute="yield_options.yield_signal",
    ),
    JobField(
        name="grace",
        type=GRACE,
        label="Grace period",
        help="Time to save work, e.g. 60s. Default: the server's grace period.",
        expected='Write a duration such as "60s"; a JSON number is in seconds.',
        group=Group.YIELD,
        attribute="yield_options.grace",
        stored_as="grace_s",
    ),
)


MOST_GPUS = 32_767


JOB_FIELDS = (
    JobField(
        name="command",
        type=COMMAND,
        label="Command",
        help="A shell line. Runs as /bin/sh -c COMMAND.",
        expected="Write the command as one text, as you would type it.",
        example="python train.py --epochs 3",
        doors=Door.REST | Door.FORM,
        attribute="command",
    ),
    JobField(
        name="argv",
        type=ARGV,
        label="Program and arguments",
        help="A program and its arguments. Runs without a shell.",
        expected="Write the program and its arguments as a list of texts.",
        doors=Door.REST,
        attribute="argv",
    ),
    JobField(
        name="script",
        type=SCRIPT,
        label="Script",
        help="A registered script instead of a command; its arguments are `script_args`.",
        expected="Write the name of a script.",
        option_help="run a registered script; its arguments follow as NAME=VALUE",
        doors=Door.REST | Door.OPTION,
        attribute="script",
        is_repeated=False,
    ),
    JobField(
        name="script_args",
        type=ARGUMENTS,
        label="Arguments of the script",
        help="Arguments of the script, as its JSON Schema at `/api/scripts/` says.",
        expected="Write the arguments as an object of names with values.",
        doors=Door.REST,
        attribute="script_args",
    ),
    JobField(
        name="gpus",
        type=integer(0, MOST_GPUS),
        label="GPUs",
        help="Number of GPUs; 0 for a job without a GPU.",
        expected="Write a whole number of GPUs, 0 or more.",
        default=1,
        option_help="number of GPUs (default: 1; 0 for a job without a GPU)",
        attribute="requirement.gpus",
    ),
    JobField(
        name="gpu_memory",
        type=SIZE,
        label="GPU memory (each GPU)",
        help="Memory needed on each GPU, e.g. 20GiB.",
        expected='Write a size such as "20GiB"; a JSON integer is in bytes.',
        example="20GiB",
        attribute="requirement.memory_bytes",
        stored_as="gpu_memory_bytes",
    ),
    JobField(
        name="time_limit",
        type=DURATION,
        label="Time limit",
        help="The job is stopped after this time, e.g. 2h or 90 min.",
        example="2h",
        attribute="time_limit",
        stored_as="time_limit_s",
    ),
    JobField(
        name="priority",
        type=PRIORITY,
        label="Priority",
        initial=str(NORMAL_PRIORITY),
        help="5 urgent, 4 high, 3 normal, 2 low, 1 background."
        " Default: 3, or 4 for a blocking job, up to the limit of the quota.",
        expected="Choose a priority from 1 (background) to 5 (urgent).",
        option_help="5 urgent to 1 background (default: 4 high; with --detach 3)",
        attribute="priority",
        operators_change=True,
    ),
    JobField(
        name="exclusive",
        type=FLAG,
        label="Exclusive: no other job on these GPUs",
        help="No other job runs on the same GPUs.",
        default=False,
        attribute="requirement.exclusive",
        summary=lambda exclusive: "exclusive" if exclusive else "",
    ),
    JobField(
        name="blocking",
        type=FLAG,
        label="Blocking",
        help="The user waits for the job's end, as with `gpucoord submit`.",
        default=False,
        doors=Door.REST,
    ),
    JobField(
        name="interactive",
        type=FLAG,
        label="Interactive",
        help="Runs in a terminal that `gpucoord shell --attach JOB` connects to."
        " It ends if its GPUs stay idle, or without a connection.",
        default=False,
        doors=Door.REST,
        attribute="interactive",
    ),
    JobField(
        name="name",
        type=NAME,
        label="Name",
        help="Visible to all users. Default: the program and its first argument.",
        expected=f"Write a name of at most {LONGEST_NAME} characters.",
        group=Group.DETAILS,
        attribute="name",
        operators_change=True,
    ),
    JobField(
        name="estimate",
        type=DURATION,
        label="Estimated run time",
        help="Your estimate, e.g. 2h or 90 min. It improves predicted start times.",
        group=Group.DETAILS,
        example="90 min",
        attribute="estimate",
        stored_as="estimate_s",
    ),
    JobField(
        name="cwd",
        type=FOLDER,
        label="Folder",
        help="Working directory. Default: home directory.",
        expected="Write a folder that starts with /.",
        group=Group.DETAILS,
        example="/home/you/project",
        option_help="working directory (default: this folder, if the server is local)",
        attribute="cwd",
    ),
    JobField(
        name="env",
        type=VARIABLES,
        label="Variables",
        help="Environment variables. Values are never shown again.",
        expected="Write variables as names with texts, such as LR=0.1.",
        group=Group.DETAILS,
        example="WANDB_MODE=offline",
        option_help="a variable; without =VALUE its value in this shell; may be repeated",
        attribute="env",
    ),
    JobField(
        name="environment",
        type=VARIABLES,
        label="Environment",
        help="The environment that the command line captures; `env` takes precedence."
        " Removed when the job has ended.",
        expected="Write the environment as names with texts.",
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="environment",
        stored_as="",
    ),
    JobField(
        name="umask",
        type=UMASK,
        label="Umask",
        help="File mode creation mask in octal digits, such as 022. Default: 022.",
        expected="Write up to three octal digits, such as 022.",
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="umask",
    ),
    JobField(
        name="limits",
        type=LIMITS,
        label="Soft limits",
        help="Soft limits of the job's processes as `ulimit -S` sets them, in bytes, seconds or"
        ' numbers, or "unlimited". Default: nofile 1024, core 0, stack 8 MiB, others the hard'
        " limits of the server, which are never exceeded.",
        expected='Write limits as names with numbers, such as {"nofile": 4096}.',
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="limits",
    ),
    JobField(
        name="group",
        type=GROUP,
        label="Primary group",
        help="Primary group of the job's processes, if the account is a member of it."
        " Default: the account's own.",
        expected="Write the name of a group.",
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="group",
        stored_as="primary_group",
    ),
    JobField(
        name="left_out",
        type=LEFT_OUT,
        label="Left out",
        help="Variables and other parts of the submitting shell that the job does not get, with"
        " the reason. The command line names them; they are shown with the job.",
        expected="Write names with the reasons as texts.",
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="left_out",
    ),
    JobField(
        name="tags",
        type=TAGS,
        label="Tags",
        help="Project, comment and the like, e.g. project=vision. Visible to all users.",
        expected='Write tags as names with texts, such as {"project": "vision"}.',
        group=Group.DETAILS,
        example="project=vision",
        option_help="a tag such as project=vision, visible to all users; may be repeated",
        attribute="tags",
    ),
    JobField(
        name="stdin_base64",
        type=INPUT,
        label="Standard input",
        help="Standard input of the job, in base64; at most 1 MiB."
        " It is removed once the job has ended.",
        expected="Write the standard input in base64, at most 1 MiB of it.",
        group=Group.DETAILS,
        doors=Door.REST,
        attribute="stdin",
        stored_as="",
    ),
    JobField(
        name="model",
        type=PATTERN,
        label="Model",
        help="Part of the GPU's model name, or a pattern: H100, RTX*.",
        expected="Write a part of the GPU's name, such as H100 or RTX*.",
        group=Group.GPU,
        example="H100",
        attribute="requirement.model",
        stored_as="gpu_model",
        summary=str,
    ),
    JobField(
        name="on_gpu",
        type=GPU,
        label="Only this GPU",
        help="Only this GPU: its number or UUID.",
        expected="Write the number of a GPU, or its UUID.",
        group=Group.GPU,
        attribute="requirement.gpu_uuid",
    ),
    JobField(
        name="capability",
        type=CAPABILITY,
        label="Minimum compute capability",
        help="Minimum compute capability, e.g. 8.0.",
        expected='Write a compute capability such as "8.0".',
        group=Group.GPU,
        example="8.0",
        attribute="requirement.capability",
        summary=lambda capability: f"capability ≥ {capability}" if capability else "",
    ),
    JobField(
        name="power",
        type=number(1e6),
        label="Minimum GPU performance rank",
        help="Minimum performance rank; each GPU's page shows its rank.",
        expected="Write a rank above 0, such as 300; the page of a GPU shows its own.",
        group=Group.GPU,
        attribute="requirement.power",
        summary=lambda rank: f"rank ≥ {rank:g}" if rank else "",
    ),
    JobField(
        name="gpu_share",
        type=integer(1, 100),
        label="GPU time cap (%)",
        help="Maximum share of a shared GPU's time, in percent.",
        expected="Write a percentage from 1 to 100.",
        group=Group.GPU,
        attribute="requirement.share_pct",
        summary=lambda percent: f"at most {percent} % GPU time" if percent else "",
    ),
    JobField(
        name="host",
        type=HOST,
        label="Host",
        help="Only this host; any: the host that can start the job first.",
        expected="Write the name of a host, or any.",
        group=Group.HOST,
        example="any",
        option_help="only this host (default: any, the one that can start it first)",
        attribute="host",
        summary=lambda host: f"only on {host}" if host else "",
    ),
    JobField(
        name="cpus",
        type=number(1e5),
        label="CPU limit",
        help="Limit for all processes of the job. Default: the server's limit per job.",
        expected="Write how many CPUs, such as 4 or 0.5.",
        group=Group.HOST,
        attribute="cpus",
        summary=lambda n: f"at most {n:g} CPU{'' if n == 1 else 's'}" if n else "",
    ),
    JobField(
        name="memory",
        type=SIZE,
        label="Host memory limit",
        help="The job is killed above this limit, e.g. 16GiB (requires cgroups).",
        expected='Write a size such as "16GiB"; a JSON integer is in bytes.',
        group=Group.HOST,
        attribute="memory_bytes",
        summary=lambda size: f"at most {size / GIB:.4g} GiB host memory" if size else "",
    ),
    *START_FIELDS,
)

# Fields that owners may change by REST while the job waits.
OWNERS_CHANGE = frozenset(
    {
        "name",
        "priority",
        "time_limit",
        "estimate",
        "gpu_memory",
        "cpus",
        "memory",
        "begin",
        "tags",
        "host",
        "gpus",
        "exclusive",
        "model",
        "on_gpu",
        "capability",
        "power",
        "preemptible",
    }
)
BY_NAME: Mapping[str, JobField] = {field.name: field for field in JOB_FIELDS}


def fields_of(door: Door, group: Group | None = None) -> Iterator[JobField]:
    """The fields that users may set there."""
    return (f for f in JOB_FIELDS if door in f.doors and group in (None, f.group))


def stored_fields() -> Iterator[JobField]:
    """The fields with a column of their own."""
    return (field for field in JOB_FIELDS if field.column)


def columns(new: NewJob) -> dict[str, Any]:
    """The columns of a job's row that follow from its fields."""
    return {
        field.column: field.type.to_column(attrgetter(field.attribute)(new))
        for field in stored_fields()
    }


def requested(job: object) -> dict[str, Any]:
    """The resources in a job's row, as REST gives them out; those left out are not listed."""
    values = {f.answer_name: getattr(job, f.column) for f in stored_fields() if f.is_resource}
    always = ("gpus", "gpu_memory_bytes", "exclusive")
    return {name: value for name, value in values.items() if value or name in always}
