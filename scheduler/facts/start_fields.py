"""The fields of a job about its start, retries, preemption and notices. Standard library only."""

from __future__ import annotations

from scheduler.facts.field_types import (
    FLAG,
    GRACE,
    INDICES,
    JOBS,
    MOMENT,
    NOTICES,
    SIGNAL,
    Group,
    JobField,
    integer,
)

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
