"""Submit a batch: check its request once and each of its items, then store them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from msgspec import Struct

from monitor.facts.input_rules import is_storable
from monitor.gpus.rows import closures as gpu_closures
from monitor.models import Gpu
from monitor.thresholds import rows as thresholds
from scheduler.execution.engines.facts import EngineName
from scheduler.facts.jobs import Refusal
from scheduler.facts.scripts import LONGEST_ITEM, MOST_ITEMS, Approval, Script
from scheduler.fair_share.rows import Rights
from scheduler.models import Batch
from scheduler.submission.batches import policy, rows, step
from scheduler.submission.batches.policy import BatchPolicy
from scheduler.submission.batches.step import jobs_of
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import policy as script_policy
from scheduler.submission.scripts import rows as script_rows
from scheduler.submission.scripts.policy import TooManySteps

MOST_MISTAKES = 20
# Fields of a job that make no sense for an item.
NOT_FOR_ITEMS = frozenset(
    {"array", "array_limit", "begin", "after", "after_success", "stdin_base64", "blocking"}
)
NO_GPUS = "Items without a GPU (gpus 0) cannot take GPUs for themselves."
TOO_LONG = "Checking the items by the script takes too long; send fewer or shorter ones."
SHARED = "It applies to exclusive mode only."


class CheckedBatch(Struct, frozen=True, kw_only=True):
    """A batch without mistakes, which is not stored yet. gpus: None = it takes none for itself."""

    owner: User
    label: str
    request: Mapping[str, Any]
    items: Sequence[str]
    gpus: Sequence[str] | None
    work: Mapping[str, Any] | None
    approval: Approval

    def store(self, now: datetime) -> Batch:
        return rows.create(
            self.owner, self.label, self.request, self.items, now, self.gpus, self.work,
            self.approval,
        )  # fmt: skip


def submit(
    raw: Mapping[str, Any],
    items: Sequence[str],
    gpu_mode: str | None,
    owner: User,
    now: datetime,
    only_gpus: Sequence[str] = (),
) -> Batch:
    """Store a batch, as `check` returns it. Raises UnableToSubmit with all mistakes."""
    return check(raw, items, gpu_mode, owner, now, only_gpus).store(now)


def check(
    raw: Mapping[str, Any],
    items: Sequence[str],
    gpu_mode: str | None,
    owner: User,
    now: datetime,
    only_gpus: Sequence[str] = (),
) -> CheckedBatch:
    """Check a batch and store nothing. Raises UnableToSubmit with all mistakes.

    gpu_mode: None = by the number of items. only_gpus: UUIDs or numbers of the GPUs that it may
    take for itself; () = all.
    """
    request = {name: value for name, value in raw.items() if value not in (None, [], {}, "")}
    may = rows.needs_no_approval(owner)
    chosen = gpu_closures.uuids_of(list(only_gpus), settings.CONFIG.node)
    refusals = [*_of_items(items), *_of_gpus(chosen, gpu_mode)]
    texts = rows.problems_of_owner(owner, len(items), now)
    refusals += [Refusal(field="items", text=text) for text in texts]
    if refusals:
        raise UnableToSubmit(refusals)
    script = _with_worker(request)
    if script is None:
        (first,) = jobs_of(request, [(0, items[0])], now)
    else:
        first = step.worker_of(request, items[0], script, now)
    refusals = [*_of_script(request, items), *intake.refusals(first, owner)]
    gpus = first.requirement.gpus
    if gpu_mode == "exclusive" and not gpus:
        refusals.append(Refusal(field="gpu_mode", text=NO_GPUS))
    if refusals:
        raise UnableToSubmit(refusals)
    rules = thresholds.current(BatchPolicy)
    mode = policy.mode_of(len(items), gpu_mode, gpus=gpus, may=may, policy=rules)
    chosen_gpus = chosen if mode == "exclusive" else None
    work = None if script is None else step.work_of(first, script)
    approval = Approval.NONE
    if mode == "exclusive" and not may:
        by_share = rows.gpus_by_share(owner.username, Rights(now, [owner.username]))
        approval = Approval.SHARE if gpus <= by_share else Approval.ASKED
    return CheckedBatch(
        owner=owner, label=first.label, request=request, items=items, gpus=chosen_gpus,
        work=work, approval=approval,
    )  # fmt: skip


def _with_worker(request: Mapping[str, Any]) -> Script | None:
    """The script, if its worker answers the items; None: they become jobs.

    Another engine runs jobs only.
    """
    if not request.get("script") or settings.CONFIG.engine != EngineName.LOCAL.value:
        return None
    try:
        script = script_rows.named(str(request["script"]))
    except ValueError:
        # The check of the first item refuses it.
        return None
    return script if script.worker else None


def _of_gpus(chosen: Sequence[str], gpu_mode: str | None) -> Iterator[Refusal]:
    if chosen and gpu_mode == "shared":
        yield Refusal(field="only_gpus", text=SHARED)
    here = set(Gpu.objects.filter(uuid__in=chosen).values_list("uuid", flat=True))
    for uuid in chosen:
        if uuid not in here:
            yield Refusal(field="only_gpus", text=f"There is no GPU {uuid}.")


def _of_items(items: Sequence[str]) -> list[Refusal]:
    if not items:
        return [Refusal(field="items", text="A batch needs at least one item.")]
    if len(items) > MOST_ITEMS:
        text = f"A batch has at most {MOST_ITEMS} items, not {len(items)}; split it up."
        return [Refusal(field="items", text=text)]
    return list(islice(_of_texts(items), MOST_MISTAKES))


def _of_texts(items: Sequence[str]) -> Iterator[Refusal]:
    for index, item in enumerate(items):
        if not item.strip() or len(item) > LONGEST_ITEM:
            text = f"An item has 1 to {LONGEST_ITEM} characters."
            yield Refusal(field="items", text=text, index=index)
        elif not is_storable(item) or not item.isprintable():
            text = "An item has no line ends or control characters."
            yield Refusal(field="items", text=text, index=index)


def _of_script(request: Mapping[str, Any], items: Sequence[str]) -> list[Refusal]:
    """Mistakes of items as the argument that they become. The first was checked in full."""
    if not request.get("script"):
        return []
    script = script_rows.named(str(request["script"]))
    if not script.item_argument:
        return []
    try:
        wrong = script_policy.item_mistakes(script, items, MOST_MISTAKES)
    except TooManySteps:
        return [Refusal(field="items", text=TOO_LONG)]
    return [Refusal(field="items", text=text, index=place) for place, text in wrong]
