"""REST: shares of all users, and the quota of one user."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError

from monitor.api import PlainText, RequestBody, caller, stated
from monitor.pages.requests import InvalidInput
from scheduler.limits.quotas import pages as quota_pages
from scheduler.limits.quotas import rows

router = Router()
MOST = 1_000_000_000
# Their columns check these.
Percent: Any = stated(float, minimum=0, maximum=100)
GpuShare: Any = stated(int, minimum=1, maximum=100)
Priority: Any = stated(int, minimum=1, maximum=5)
# Of a quota, as they are in the answer.
SETTINGS = (
    "share_pct", "share_is_limit", "reserved_pct", "priority", "gpu_share_pct",
    "exclusive_batches",
)  # fmt: skip


class ShareLine(Schema):
    """A user; parts of all GPUs are 0 to 1."""

    name: str
    wants: bool = Field(description="The user has waiting or running jobs.")
    now: float | None = Field(description="Current usage by all processes of the user.")
    target: float | None = Field(description="Fair-share target; null: the user requests nothing.")
    entitled: float = Field(description="The grant of quotas.")
    entitlement_pct: float = Field(description="`entitled` in percent.")
    target_share_pct: float | None = Field(description="`target` in percent.")
    use_pct: float | None = Field(description="`now` in percent.")
    usage: float | None = Field(description="Decayed mean of past usage.")
    factor: float = Field(description="1: no usage. 0.5: usage equals the entitlement.")
    coverage: float | None = Field(description="Part of the time for which the usage is known.")
    waiting: int
    running: int
    gpus: int


class Shares(Schema):
    gpus: int
    half_life_hours: float
    people: list[ShareLine]


class Limit(Schema):
    """A limit and the current usage; most null: no limit."""

    used: float
    most: float | None
    committed: float = Field(0.0, description="Amount that running jobs may still use.")


class QuotaBody(Schema):
    """Memory is in bytes; GPU-minutes are those of the day that ends at `resets_at`."""

    name: str
    entitlement_pct: float = Field(description="The grant of quotas, in percent of all GPUs.")
    target_share_pct: float | None = Field(
        description="The grant of fair share now; null: the user requests nothing."
    )
    use_pct: float | None = Field(description="Current usage of all GPUs.")
    share_pct: float | None
    share_is_limit: bool = Field(description="The share is also a limit, at any time.")
    reserved_pct: float
    priority: int | None
    gpu_share_pct: int | None = Field(
        None, description="Default and most of a job's `gpu_share` on GPUs that it shares."
    )
    exclusive_batches: bool = Field(description="Large batches may take GPUs for themselves.")
    gpu_minutes: Limit
    gpus: Limit
    jobs: Limit
    memory_bytes: Limit
    queued: Limit
    gpu_minutes_left: float | None
    resets_at: datetime
    zone: str
    decided_elsewhere: list[str] = Field(
        description="Sentences: jobs to which these limits do not apply, as Slurm decides."
    )


class QuotaChange(RequestBody):
    """Fields that are left out keep their value; null: no limit."""

    user: PlainText = Field(max_length=150, description="The user of the quota.")
    share_pct: Percent | None = None
    share_is_limit: bool = False
    reserved_pct: Percent = 20.0
    gpu_share_pct: GpuShare | None = None
    priority: Priority | None = None
    gpu_minutes: float | None = Field(None, ge=0, le=1e9, description="A day.")
    gpus: int | None = Field(None, ge=0, le=MOST)
    jobs: int | None = Field(None, ge=0, le=MOST)
    memory_bytes: int | None = Field(None, ge=0, le=2**60)
    queued: int | None = Field(None, ge=0, le=MOST)
    prompts: int | None = Field(None, ge=0, le=MOST, description="A day.")
    prompt_tokens: int | None = Field(None, ge=0, le=2**60, description="A day.")
    exclusive_batches: bool = False


@router.get("shares/", response=Shares, summary="List shares", url_name="shares")
def shares(request: HttpRequest) -> dict[str, Any]:
    """Current usage and fair-share target of each user. All processes count."""
    table = quota_pages.share_table(timezone.now())
    return {
        "gpus": table.gpus,
        "half_life_hours": table.half_life_hours,
        "people": [_line(line) for line in table.lines],
    }


@router.get("quota/", response=QuotaBody, summary="Show a quota", url_name="quota")
def quota(
    request: HttpRequest,
    user: Annotated[str | None, Query(description="Another user (operators only).")] = None,
) -> dict[str, Any]:
    """The limits of your jobs, and the current usage of each."""
    person = caller(request)
    name = user or person.username
    if name != person.username and not person.is_staff:
        raise HttpError(403, f"Only {name} and operators may see these limits.")
    return _quota_of(name, timezone.now())


@router.patch("quota/", response=QuotaBody, summary="Change a quota", url_name="quota-change")
def change_quota(request: HttpRequest, body: QuotaChange) -> dict[str, Any]:
    """Operators with the permission to change quotas only. The answer is the quota in force."""
    person = caller(request)
    if not (person.is_staff and person.has_perm("scheduler.change_quota")):
        raise HttpError(403, "Only operators with the permission to change quotas may do this.")
    user = User.objects.filter(username=body.user).first()
    if user is None:
        raise InvalidInput([("user", f"There is no user {body.user}.")])
    limits = {name: getattr(body, name) for name in body.model_fields_set - {"user"}}
    now = timezone.now()
    try:
        rows.set_limits(user, limits, by=person.username, now=now)
    except ValidationError as error:
        problems = error.message_dict.items()
        raise InvalidInput([(name, " ".join(texts)) for name, texts in problems]) from None
    return _quota_of(user.username, now)


def _quota_of(name: str, now: datetime) -> dict[str, Any]:
    own = quota_pages.own_of(name, now)
    figures = {figure.name: figure for figure in own.figures}
    return {
        "name": name,
        **_rights(own.line),
        **{name: getattr(own.line.quota, name) for name in SETTINGS},
        **{
            key: {"used": f.used, "most": f.most, "committed": f.committed}
            for key, f in figures.items()
        },
        "gpu_minutes_left": own.left,
        "resets_at": own.resets_at,
        "zone": own.zone,
        "decided_elsewhere": quota_pages.decided_elsewhere(),
    }


def _rights(line: quota_pages.ShareLine) -> dict[str, float | None]:
    """The three figures, by the names that they have in all answers."""
    return {
        "entitlement_pct": 100 * line.entitled,
        "target_share_pct": 100 * line.account.target if line.wants else None,
        "use_pct": None if line.account.use is None else 100 * line.account.use,
    }


def _line(line: quota_pages.ShareLine) -> dict[str, Any]:
    account = line.account
    return {
        "name": line.name,
        "wants": line.wants,
        "now": account.use,
        "target": account.target if line.wants else None,
        "entitled": line.entitled,
        **_rights(line),
        "usage": account.usage,
        "factor": line.factor,
        "coverage": line.coverage,
        "waiting": line.waiting,
        "running": account.jobs,
        "gpus": account.gpus,
    }
