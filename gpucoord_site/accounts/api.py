"""REST: add users and invite them. Only superusers may, as in the admin."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema, Status
from ninja.errors import HttpError

from gpucoord_site.accounts import people
from monitor.api import PlainText, RequestBody
from monitor.owners import rows
from monitor.pages.requests import InvalidInput

router = Router()


class NewUserBody(RequestBody):
    name: PlainText = Field(min_length=1, max_length=150)
    account: PlainText | None = Field(
        None, min_length=1, max_length=150, description="Its OS account; null: the same name."
    )
    like: PlainText | None = Field(
        None, max_length=150, description="A user whose groups and own quota it gets."
    )


class UserAnswer(Schema):
    name: str
    account: str | None = Field(description="Its OS account.")


class InvitationAnswer(Schema):
    name: str
    url: str = Field(description="The page that sets the password, once.")
    expires_at: datetime


@router.post("", response={201: UserAnswer}, summary="Add a user", url_name="users")
def add_user(request: HttpRequest, body: NewUserBody) -> Status[dict[str, Any]]:
    """Superusers only. The user has no password: invite it, or it logs in by its OS account."""
    by, like = _superuser(request), None
    if body.like is not None:
        like = _named(body.like, "like")
    user = people.add(body.name, body.account, like, by=by, now=timezone.now())
    return Status(201, {"name": user.get_username(), "account": rows.name_of(user)})


@router.post(
    "{name}/invitation/",
    response={201: InvitationAnswer},
    summary="Invite a user",
    url_name="user-invitation",
)
def invite_user(request: HttpRequest, name: str) -> Status[dict[str, Any]]:
    """Superusers only. The link sets the password of the user and logs in."""
    by, user = _superuser(request), _named(name, "name")
    made = people.invite(user, by=by, now=timezone.now())
    url = people.invitation_url(made, request)
    answer = {"name": user.get_username(), "url": url, "expires_at": made.expires_at}
    return Status(201, answer)


def _superuser(request: HttpRequest) -> str:
    user: User = request.auth  # type: ignore[attr-defined]
    if not user.is_superuser:
        raise HttpError(403, "Only superusers may add and invite users.")
    return user.get_username()


def _named(name: str, field: str) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        raise InvalidInput([(field, f"There is no user {name}.")])
    return user
