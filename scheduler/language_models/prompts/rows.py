"""Rows of prompts and of the use of models.

A prompt is given to an instance by a compare-and-set of its status and attempt, and an answer is
stored only for the attempt that is current. So each prompt is answered once, even if processes
are killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User
from django.db.models import Case, F, Model, QuerySet, Sum, TextField, Value, When, Window
from django.db.models.functions import Cast, Length, RowNumber
from django.utils import timezone
from msgspec import Struct
from msgspec.structs import replace

from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts.language_models import (
    MOST_ATTEMPTS,
    MOST_RESTARTS,
    OPEN,
    WITH_INSTANCE,
    Answer,
    DayUse,
    NewPrompt,
    PromptStatus,
)
from scheduler.language_models.prompts.policy import (
    MIB,
    USE_KEPT,
    WAITING_MIB,
    PromptPolicy,
    over_quota,
    size_of,
)
from scheduler.limits.quotas import rows as quota_rows
from scheduler.models import ModelService, ModelUse, Prompt

WAKE = "prompts"
# Longer answers are cut in the table.
LONGEST_RESULT = 1_000_000
LONGEST_REASON = 300
HOUR = timedelta(hours=1)
_OPEN = sorted(status.value for status in OPEN)
_WITH_INSTANCE = sorted(status.value for status in WITH_INSTANCE)


def create(new: NewPrompt, owner: User, now: datetime) -> Prompt:
    row = Prompt.objects.create(
        owner=owner,
        model=new.model,
        type=new.type.value,
        priority=new.priority,
        messages=[dict(message) for message in new.messages],
        parameters=dict(new.parameters),
        created_at=now,
    )
    wake(WAKE)
    wake("live")
    return row


def waiting(most: int) -> list[Prompt]:
    """Prompts without an instance, about `most`: of each user the first by priority and creation.

    A long queue of one user does not hide the prompts of others. Their texts are not read: they
    may be long, and this is asked for every second.
    """
    rows = Prompt.objects.filter(status=PromptStatus.QUEUED.value)
    owners = rows.order_by().values("owner").distinct().count()
    place = Window(RowNumber(), partition_by="owner", order_by=("-priority", "id"))
    first = rows.annotate(place=place).filter(place__lte=max(1, most // max(1, owners)))
    texts = ("messages", "parameters", "result", "error")
    return list(first.select_related("owner").defer(*texts).order_by("owner", "place"))


def texts(prompt_id: int) -> Prompt:
    """A prompt with its messages and parameters. Raises Prompt.DoesNotExist."""
    return Prompt.objects.only("model", "messages", "parameters").get(pk=prompt_id)


def waiting_of(owner: User) -> int:
    return Prompt.objects.filter(owner=owner, status=PromptStatus.QUEUED.value).count()


def waiting_bytes(owner: User) -> int:
    """The stored size of the texts of the user's waiting prompts."""
    waiting = Prompt.objects.filter(owner=owner, status=PromptStatus.QUEUED.value)
    texts = (Length(Cast(name, TextField())) for name in ("messages", "parameters"))
    return waiting.aggregate(total=Sum(sum(texts, Value(0))))["total"] or 0


def claim(prompt_id: int, host: str, worker: str, instance: int, now: datetime) -> int | None:
    """Give a waiting prompt to an instance. Returns the attempt; None: it no longer waits."""
    changed = Prompt.objects.filter(pk=prompt_id, status=PromptStatus.QUEUED.value).update(
        status=PromptStatus.ASSIGNED.value,
        attempt=F("attempt") + 1,
        host=host,
        worker=worker,
        instance=instance,
        assigned_at=now,
        waits_for="",
    )
    if not changed:
        return None
    # Only this worker may change an assigned prompt, so that this is its own attempt.
    return Prompt.objects.values_list("attempt", flat=True).get(pk=prompt_id)


def begin(prompt_id: int, attempt: int, now: datetime) -> bool:
    """The instance gets the request now. False: the attempt is not the current one."""
    mine = _mine(prompt_id, attempt, PromptStatus.ASSIGNED)
    return bool(mine.update(status=PromptStatus.RUNNING.value, started_at=now))


def grow(prompt_id: int, attempt: int, text: str, first_at: datetime | None) -> bool:
    """Store the beginning of an answer, for viewers. False: not the current attempt."""
    mine = _mine(prompt_id, attempt, PromptStatus.RUNNING)
    return bool(mine.update(result=text[:LONGEST_RESULT], first_token_at=first_at))


def complete(prompt_id: int, attempt: int, answer: Answer, now: datetime) -> bool:
    """Store the answer. False: the attempt is not the current one, so nothing was stored."""
    done = _mine(prompt_id, attempt, PromptStatus.RUNNING).update(
        status=PromptStatus.COMPLETE.value,
        result=answer.text[:LONGEST_RESULT],
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        finished_at=now,
    )
    wake("live")
    return bool(done)


def fail(prompt_id: int, attempt: int, reason: str, now: datetime) -> bool:
    """End an attempt's prompt with a reason. False: the attempt is not the current one."""
    mine = Prompt.objects.filter(pk=prompt_id, attempt=attempt, status__in=_WITH_INSTANCE)
    done = mine.update(status=PromptStatus.FAILED.value, error=reason[:2000], finished_at=now)
    wake("live")
    return bool(done)


def put_back(prompt_id: int, attempt: int, reason: str, now: datetime) -> bool:
    """The instance failed: the prompt waits again, or fails after MOST_ATTEMPTS.

    False: the attempt is not the current one.
    """
    mine = Prompt.objects.filter(pk=prompt_id, attempt=attempt, status__in=_WITH_INSTANCE)
    done = _put_back(mine, reason, now)
    wake(WAKE)
    return bool(done)


def recover(host: str, worker: str, in_hand: Sequence[int], now: datetime) -> int:
    """Requeue the prompts of this host whose worker was killed.

    in_hand: the prompts that this worker has.
    """
    mine = Prompt.objects.filter(host=host, status__in=_WITH_INSTANCE)
    lost = mine.exclude(worker=worker, pk__in=in_hand)
    # A look needs no lock of the database; it is repeated every second.
    if not lost.exists():
        return 0
    reason = "gpucoord was restarted while an instance answered"
    return _put_back(lost, reason, now, most=MOST_RESTARTS)


def _put_back(rows: QuerySet[Prompt], reason: str, now: datetime, most: int = MOST_ATTEMPTS) -> int:
    """Let prompts wait again; those with `most` attempts fail."""
    is_last = When(attempt__gte=most, then=Value(PromptStatus.FAILED.value))
    text = f"{reason[:1900]} ({most} attempts)"
    return rows.update(
        status=Case(is_last, default=Value(PromptStatus.QUEUED.value)),
        finished_at=Case(When(attempt__gte=most, then=Value(now))),
        error=Case(When(attempt__gte=most, then=Value(text)), default=Value("")),
        result="",
        started_at=None,
        first_token_at=None,
    )


def mark_cancelled(prompt: Prompt, by: str, now: datetime) -> bool:
    """End an open prompt. False: it had ended already."""
    done = Prompt.objects.filter(pk=prompt.pk, status__in=_OPEN).update(
        status=PromptStatus.FAILED.value, error=f"Cancelled by {by}.", finished_at=now
    )
    wake(WAKE)
    wake("live")
    return bool(done)


def fail_open(model: str, reason: str, now: datetime) -> int:
    """End all prompts to a model that have no answer yet, with the reason. Returns their number."""
    rows = Prompt.objects.filter(model=model, status__in=_OPEN)
    ended = rows.update(status=PromptStatus.FAILED.value, error=reason, finished_at=now)
    if ended:
        wake(WAKE)
        wake("live")
    return ended


def explain(waits: Mapping[int, str]) -> None:
    """Store why prompts wait, in one statement."""
    if waits:
        texts = [When(pk=id_, then=Value(text[:LONGEST_REASON])) for id_, text in waits.items()]
        rows = Prompt.objects.filter(pk__in=list(waits), status=PromptStatus.QUEUED.value)
        rows.update(waits_for=Case(*texts, default=F("waits_for")))


def _mine(prompt_id: int, attempt: int, status: PromptStatus) -> QuerySet[Prompt]:
    return Prompt.objects.filter(pk=prompt_id, attempt=attempt, status=status.value)


class Use(Struct, frozen=True, kw_only=True):
    """One request that has ended; see ModelUse."""

    model: str
    owner: str
    failed: bool = False
    warm: bool = False
    cold: bool = False
    estimated: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    waited_s: float = 0.0
    first_token_s: float = 0.0
    answer_s: float = 0.0


_SUMS = (
    "failed", "warm", "cold", "estimated", "prompt_tokens", "completion_tokens", "waited_s",
    "first_token_s", "answer_s",
)  # fmt: skip


def add_use(uses: Iterable[Use], now: datetime) -> None:
    """Add requests to the sums of this hour. The caller opens the transaction."""
    hour_at = now.replace(minute=0, second=0, microsecond=0)
    groups: dict[tuple[str, str], list[Use]] = {}
    for use in uses:
        groups.setdefault((use.model, use.owner), []).append(use)
    for (model, owner), group in groups.items():
        key = {"hour_at": hour_at, "model": model[:100], "owner": owner}
        ModelUse.objects.bulk_create([ModelUse(**key)], ignore_conflicts=True)
        sums = {name: F(name) + sum(getattr(use, name) for use in group) for name in _SUMS}
        ModelUse.objects.filter(**key).update(requests=F("requests") + len(group), **sums)


def used_today(owner: str, now: datetime) -> DayUse:
    """Since midnight in the server's zone."""
    local = now.astimezone(ZoneInfo(timezone.get_default_timezone_name()))
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    rows = ModelUse.objects.filter(owner=owner, hour_at__gte=midnight)
    sums = rows.aggregate(
        n=Sum("requests"), asked=Sum("prompt_tokens"), answered=Sum("completion_tokens")
    )
    return DayUse(sums["n"] or 0, (sums["asked"] or 0) + (sums["answered"] or 0))


class ModelSummary(Struct, frozen=True):
    """The requests to a model in a time range; `hot` were taken by an instance that was ready.

    first_token_s: the mean seconds until the first byte; None = no request was answered.
    """

    requests: int = 0
    failed: int = 0
    hot: int = 0
    warm: int = 0
    cold: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None

    @property
    def rates(self) -> list[tuple[str, int, float | None]]:
        """Name, number and percentage of hot, warm and cold requests."""
        counts = (("hot", self.hot), ("warm", self.warm), ("cold", self.cold))
        total = sum(count for _, count in counts)
        return [(name, n, 100 * n / total if total else None) for name, n in counts]


def summary(model: str, since: datetime) -> ModelSummary:
    names = (
        "requests", "failed", "warm", "cold", "prompt_tokens", "completion_tokens",
        "first_token_s",
    )  # fmt: skip
    rows = ModelUse.objects.filter(model=model, hour_at__gt=since - HOUR)
    sums = {k: v or 0 for k, v in rows.aggregate(**{n: Sum(n) for n in names}).items()}
    answered = sums["requests"] - sums["failed"]
    first_s = sums.pop("first_token_s")
    return ModelSummary(
        hot=max(0, answered - sums["warm"] - sums["cold"]),
        first_token_s=first_s / answered if answered else None,
        **sums,
    )


def too_old(_: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """Prompts and sums after their retention."""
    policy = thresholds.current(PromptPolicy)
    yield Prompt.objects.filter(finished_at__lt=now - timedelta(days=policy.days))
    yield ModelUse.objects.filter(hour_at__lt=now - USE_KEPT)


# Send a prompt, after checks of the model, the quota and the queue; cancel one.


class UnknownModel(LookupError):
    """There is no such model; the text names those that there are."""


class NotAllowed(ValueError):
    """The quota does not allow the prompt's priority; the text says which it allows."""


class TooMany(Exception):
    """The user has too many prompts, waiting or today; the text has the figures."""


class TooLarge(ValueError):
    """The prompt alone is larger than all waiting prompts of a user may be."""


def send(new: NewPrompt, owner: User, now: datetime) -> Prompt:
    """Queue a prompt. Raises UnknownModel, NotAllowed, TooLarge or TooMany."""
    model = check(new, owner, now)
    return create(replace(new, model=model), owner, now)


def check(new: NewPrompt, owner: User, now: datetime) -> str:
    """The name of the service that the prompt is for. Raises as `send` does."""
    model = ModelService.names().find(new.model)
    if model is None:
        names = ModelService.objects.order_by("name").values_list("name", flat=True)
        known = ", ".join(names) or "none yet"
        raise UnknownModel(f"There is no model {new.model[:100]!r}. Models: {known}.")
    quota = quota_rows.of_person(owner)
    if quota.priority is not None and new.priority > quota.priority:
        raise NotAllowed(f"Your quota allows priorities up to {quota.priority}.")
    policy = thresholds.current(PromptPolicy)
    waiting, most = waiting_of(owner), policy.waiting
    if waiting >= most:
        raise TooMany(f"You have {waiting} waiting prompts; {most} is the most. Try again later.")
    if not owner.is_staff:
        _check_size(size_of(new), owner, WAITING_MIB)
    if reason := over_quota(quota, used_today(owner.get_username(), now)):
        raise TooMany(reason)
    return model


def _check_size(size: int, owner: User, most_mib: float) -> None:
    """Raises TooLarge or TooMany."""
    if size > most_mib * MIB:
        text = f"This prompt has {size / MIB:.1f} MiB; all waiting prompts of a user may have"
        raise TooLarge(f"{text} {most_mib:g} MiB.")
    held = waiting_bytes(owner)
    if held + size > most_mib * MIB:
        text = f"Your waiting prompts have {held / MIB:.1f} MiB, and this one {size / MIB:.1f} MiB;"
        raise TooMany(f"{text} {most_mib:g} MiB is the most. Try again later.")


def cancel(prompt: Prompt, by: User, now: datetime) -> bool:
    """False: it had ended already."""
    return mark_cancelled(prompt, by.get_username(), now)
