"""Policy: read a submission, field by field, into a NewJob; list everything that is wrong."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import Struct

from scheduler.facts.field_types import LONGEST_NAME, MOST_DEPENDENCIES, JobField, ParseContext
from scheduler.facts.job_fields import JOB_FIELDS
from scheduler.facts.jobs import (
    BLOCKING_PRIORITY,
    NORMAL_PRIORITY,
    Dependency,
    DependencyKind,
    NewJob,
    Refusal,
    Requirement,
    YieldOptions,
)
from scheduler.facts.scripts import GpuUse
from scheduler.submission.scripts import policy as script_policy

# Elements of an array times the jobs that each waits for.
MOST_DEPENDENCY_ROWS = 20_000
# Words that begin a line of the shell and name no program.
SHELL_WORDS = {"for", "while", "until", "if", "case", "{", "(", "!", "[", "[["}


class UnableToSubmit(Exception):
    """The job can't be submitted as it is; each refusal names a field.

    readable: the jobs of the submission, with the defaults in place of fields that were refused.
    """

    def __init__(self, refusals: Sequence[Refusal], readable: Sequence[NewJob] = ()) -> None:
        super().__init__("; ".join(f"{r.field}: {r.text}" for r in refusals))
        self.refusals = tuple(refusals)
        self.readable = tuple(readable)


def read(raw: Mapping[str, Any], context: ParseContext) -> NewJob:
    """Check every field. Raises UnableToSubmit with all mistakes at once."""
    submission = _Submission(raw, context)
    new = submission.new_job()
    if submission.refusals:
        # The number of dependencies may be what was refused; looking them up would cost too much.
        raise UnableToSubmit(submission.refusals, [replace(new, after=())])
    return new


def default_name(words: Sequence[str]) -> str:
    """The program and its first plain argument. All users can read it: it shows no secret."""
    rest = list(words)
    while rest and "=" in rest[0]:
        rest.pop(0)
    program, *arguments = rest or ["job"]
    if program in SHELL_WORDS:
        return "shell"
    shown = [program.rpartition("/")[2] or program]
    if arguments and re.fullmatch(r"[\w./+-]*[\w/]", arguments[0]) and arguments[0][0] != "-":
        shown.append(arguments[0].rpartition("/")[2])
    return " ".join(shown)[:LONGEST_NAME]


class _Submission:
    """The values of one request, and what is wrong with them."""

    def __init__(self, raw: Mapping[str, Any], context: ParseContext) -> None:
        self._raw = raw
        self._context = context
        self.refusals: list[Refusal] = []
        self._task_type = ""
        self._check_command()
        if self._is_given("script") and not self.refusals:
            self._expand_script()
        self._values = {
            field.name: value for field in JOB_FIELDS if (value := self._parsed(field)) is not None
        }

    def new_job(self) -> NewJob:
        """The job; meaningless when there are refusals."""
        values = dict(self._values)
        values["name"] = values.get("name") or default_name(self._words())
        values.setdefault("priority", self._default_priority())
        values.update(self._array())
        parts: dict[str, dict[str, Any]] = defaultdict(dict)
        for field in JOB_FIELDS:
            if field.attribute and field.name in values:
                part, _, attribute = field.attribute.rpartition(".")
                parts[part][attribute] = values[field.name]
        new = NewJob(
            **parts[""],
            priority_chosen="priority" in self._values,
            task_type=self._task_type,
            requirement=Requirement(**parts["requirement"]),
            yield_options=YieldOptions(**parts["yield_options"]),
            after=self._dependencies(),
        )
        self._check_rows(len(new.array), len(new.after))
        if new.interactive and (new.array or new.stdin):
            self._refuse("interactive", "An interactive job has neither an array nor an input.")
        return new

    def _parsed(self, field: JobField) -> Any:
        """None where the field is empty or wrong."""
        if not self._is_given(field.name):
            return None
        try:
            return field.type.parse(self._raw[field.name], self._context)
        except ValueError as error:
            for text in error.args or (field.sentence,):
                self._refuse(field.name, text)
            return None

    def _refuse(self, field: str, text: str) -> None:
        self.refusals.append(Refusal(field=field, text=text))

    def _is_given(self, field: str) -> bool:
        value = self._raw.get(field)
        if isinstance(value, str):
            return bool(value.strip())
        return value is not None and value not in ([], (), {})

    def _check_command(self) -> None:
        has_command, has_argv = self._is_given("command"), self._is_given("argv")
        if self._is_given("script"):
            if has_command or has_argv:
                self._refuse("script", "Give either a script or a command, not both.")
        elif self._is_given("script_args"):
            self._refuse("script_args", "These are arguments of a script; name the script too.")
        elif has_command and has_argv:
            self._refuse("argv", "Give either command or argv, not both.")
        elif not (has_command or has_argv):
            self._refuse("command", "Say what to run, as you would type it.")

    def _expand_script(self) -> None:
        """The command and the requests of the script, in place of what is not given."""
        try:
            script = self._context.find_script(str(self._raw["script"]).strip())
        except ValueError as error:
            self._refuse("script", str(error))
            return
        given = self._raw.get("script_args") or {}
        if not isinstance(given, Mapping):
            self._refuse("script_args", "Write an object of arguments.")
            return
        arguments = script_policy.read_arguments(script, given)
        for where, text in script_policy.mistakes(script, arguments):
            self._refuse(f"script_args.{where}".removesuffix("."), text)
        if not script.argv:
            self._refuse("script", f"{script.name} answers items only: submit a batch.")
        if script.gpu is GpuUse.YES and self._raw.get("gpus") in (0, "0"):
            self._refuse("gpus", f"The script {script.name} needs a GPU.")
        if not self.refusals:
            self._task_type = script.task_type.value
            argv = script_policy.command(script, arguments, self._context.places)
            extra = script_policy.request(script, self._raw)
            self._raw = {**self._raw, **extra, "argv": argv, "script_args": arguments}

    def _words(self) -> Sequence[str]:
        if self._is_given("argv"):
            return list(self._raw["argv"])
        beginning = (self._raw.get("command") or "")[:1000]
        try:
            return shlex.split(beginning, comments=True)
        except ValueError:
            return beginning.split()

    def _default_priority(self) -> int:
        return BLOCKING_PRIORITY if self._values.get("blocking") else NORMAL_PRIORITY

    def _array(self) -> dict[str, Any]:
        """The indices, and the limit, which can also stand after the indices."""
        indices, limit = self._values.get("array", ((), None))
        chosen = self._values.get("array_limit")
        if chosen is not None and not self._is_given("array"):
            text = "This is for an array of jobs; write its indices too."
            self._refuse("array_limit", text)
        return {"array": indices, "array_limit": chosen or limit}

    def _dependencies(self) -> tuple[Dependency, ...]:
        kinds = {"after": DependencyKind.END, "after_success": DependencyKind.SUCCESS}
        after = {
            number: kind for field, kind in kinds.items() for number in self._values.get(field, ())
        }
        if len(after) > MOST_DEPENDENCIES:
            self._refuse("after", f"A job may wait for at most {MOST_DEPENDENCIES} others.")
        return tuple(Dependency(on=number, after=kind) for number, kind in after.items())

    def _check_rows(self, elements: int, dependencies: int) -> None:
        """Each element of an array has a row for each job it waits for."""
        if elements * dependencies > MOST_DEPENDENCY_ROWS:
            most = MOST_DEPENDENCY_ROWS // elements
            text = f"An array of {elements} jobs may wait for at most {most} jobs"
            more = f"not {dependencies}. An array to wait for counts as one."
            self._refuse("after", f"{text}, {more}")


# The OS accounts that jobs run as, and how well they separate users.


class AccountRule(Struct, frozen=True):
    """`is_safe`: users' jobs are separated from each other and from gpucoord. `todo`: a remedy."""

    is_safe: bool
    text: str
    todo: str = ""


def account_rule(
    *, is_root: bool, run_as: str, service_account: str, open_because: str = ""
) -> AccountRule:
    """The accounts of jobs and the consequences.

    open_because: why jobs without root can open gpucoord's own files; "" = they can't.
    """
    if not is_root:
        return AccountRule(
            False,
            f"not root: all jobs run as {service_account}, the account of gpucoord itself. So"
            f" all users must trust each other: jobs can read and change each other's files;"
            f" {_own_files(open_because)}",
            "run gpucoord as root, or only for one user or a group that trusts each other",
        )
    if run_as == "service":
        return AccountRule(
            False,
            "run_as = service: every job runs as root, so every user who may submit a job has"
            " full control of this server",
            "set run_as = auto, and create an OS account for each user",
        )
    own = "root: each job runs as the OS account of its owner (uid 1000 or higher)"
    root = "jobs of administrators without an account run as root"
    if run_as == "nobody":
        return AccountRule(
            False,
            f"{own}; {root}. Users without an account share the account nobody (run_as = nobody):"
            " they can read and change each other's jobs",
            "create an OS account for each user, and set run_as = auto",
        )
    return AccountRule(True, f"{own}; without one, jobs are refused; {root}")


def _own_files(open_because: str) -> str:
    if open_because:
        return f"they can also read and change all of gpucoord ({open_because})"
    return (
        "Landlock closes the data folder and the processes of gpucoord to the jobs of ordinary"
        " users, but not the other files of this account"
    )
