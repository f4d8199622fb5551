"""REST: one API of the routers of all apps, for bearer tokens and logged-in browsers.

Bodies are JSON in UTF-8 (RFC 8259). The OpenAPI description lists the error answers too.
"""

from __future__ import annotations

import re
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser
from ninja.security import HttpBearer, SessionAuth
from ninja.utils import check_csrf

from gpucoord_site import __version__
from gpucoord_site.accounts.api import router as user_router
from gpucoord_site.http import clients, errors
from gpucoord_site.http.api_errors import handle_errors
from monitor.api import refuse_unknown_parameters
from monitor.facts import input_rules
from monitor.facts.accounts import TokenScope, scopes_of
from monitor.gpus.api import gpu_router, host_router
from monitor.gpus.api import router as monitor_router
from monitor.incidents.api import router as incident_router
from monitor.models import Agent
from monitor.owners import rows
from monitor.runtime.rows.extensions import part
from monitor.thresholds.api import router as policy_router
from monitor.usage.api import router as history_router
from reports.render.api import router as report_router
from reports.tags.api import router as tag_router
from scheduler.dispatch.api import router as without_incident_router
from scheduler.jobs.api import router as scheduler_router
from scheduler.jobs.notifications.api import router as notification_router
from scheduler.limits.quotas.api import router as share_router
from scheduler.limits.throttle.api import router as mode_router
from scheduler.limits.time_windows.api import router as window_router

Json = dict[str, Any]
ERROR = "#/components/schemas/Error"
ERROR_SCHEMA: Json = {
    "title": "Error",
    "type": "object",
    "description": "Why the request was refused or failed.",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string", "description": "The phrase of the status."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "A sentence for a person."},
        "errors": {
            "type": "array",
            "description": "What is wrong, by field.",
            "items": {
                "type": "object",
                "properties": {
                    "index": {
                        "type": "integer",
                        "description": "Of a batch: which job it is, from 0.",
                    },
                    "field": {"type": "string"},
                    "message": {"type": "string"},
                },
                "required": ["field", "message"],
            },
        },
    },
    "required": ["type", "title", "status", "detail"],
}
DESCRIPTIONS = {
    400: "The request can't be read.",
    401: "Not logged in, or the token is not valid.",
    403: "The user may not do this, or the CSRF token of a browser is missing.",
    404: "There is no such thing.",
    409: "The state of the job, model, incident, schedule or clean-up does not allow it.",
    410: "The log was removed.",
    413: "The body is too large.",
    415: "The request is not in UTF-8.",
    422: "A field or parameter is wrong; `errors` names it.",
    429: "Too many; try again after `Retry-After` seconds.",
    501: "The server lacks an optional package; the answer says how to get it.",
    503: "The database does not answer; try again after `Retry-After` seconds.",
}
ALWAYS = (400, 401, 403, 415, 422, 429, 503)
RETRY_LATER = (429, 503)
RETRY_AFTER: Json = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}


class DocumentedApi(NinjaAPI):
    """An API whose description names the error answers."""

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        schema: OpenAPISchema = super().get_openapi_schema(**options)
        schema["components"]["schemas"]["Error"] = ERROR_SCHEMA
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                for status in error_statuses(path, method, operation):
                    operation["responses"].setdefault(status, _answer(status))
        return schema


CONFLICTS = (
    "/requeue/",
    "/resubmit/",
    "/boot/",
    "/unload/",
    "/disks/clean/",
    "/incidents/{pk}/end/",
    "/incidents/{pk}/message/",
    "/reports/schedules/{pk}/send/",
)


def error_statuses(path: str, method: str, operation: Json) -> list[int]:
    """The statuses of an operation's error answers."""
    statuses = set(ALWAYS)
    if "{" in path or path.endswith(("/mode/", "/capacity/")):
        statuses.add(404)
    if method != "get":
        statuses.add(413)
    if (path, method) in (("/api/prompts/", "post"), ("/api/disks/clean/", "post")):
        statuses.add(404)
    if method == "patch" or path.endswith(CONFLICTS):
        statuses.add(409)
    if path == "/api/reports/usage/":
        statuses |= {404, 501}
    return sorted(statuses - set(operation["responses"]))


def _answer(status: int) -> Json:
    answer: Json = {
        "description": DESCRIPTIONS[status],
        "content": {errors.CONTENT_TYPE: {"schema": {"$ref": ERROR}}},
    }
    return answer | ({"headers": RETRY_AFTER} if status in RETRY_LATER else {})


class JsonBody(Parser):
    """Neither UTF-16 nor NaN; both are no JSON, though Python's parser reads them."""

    def parse_body(self, request: HttpRequest) -> Any:
        """The value. Any exception becomes 400."""
        text = request.body.decode("utf-8-sig")
        return input_rules.parse_json(text, allows_nan=False)


UNAUTHENTICATED = (
    "Log in, or send a token: Authorization: Bearer TOKEN. `gpucoord token USER` makes one."
)
REFUSED = "This token is unknown, expired or revoked. `gpucoord token USER` makes a new one."
NO_CSRF = "The CSRF token is missing or wrong: send the gpucoord_csrf cookie as X-CSRFToken too."
NO_SCOPE = "This token lacks the scope `{needed}`. Create one with it on the page /account/."
AGENT_STOPPED = "The agent {name} is stopped. Its owner can start it again on the page /account/."
AGENT_REFUSED = "The token of an agent may only read, submit jobs and cancel its own jobs."
AGENTS_MAY = re.compile(r"/api/jobs/(batch/|\d+/cancel/)?")
DESCRIPTION = "See the GPUs, submit jobs and follow them. Times are ISO 8601, sizes in bytes."


# Requests that send a body and change nothing.
READING_POSTS = {"/api/jobs/what-if/"}


class Token(HttpBearer):
    """A token of a user. Without the scope `operate`, its user has no rights of staff."""

    def authenticate(self, request: HttpRequest, token: str) -> User:
        row = rows.find(token.strip(), timezone.now())
        if row is None:
            clients.token_refused(request)
            raise AuthenticationError(message=REFUSED)
        clients.count(row.user)
        scopes, needed = scopes_of(row.scopes), needed_scope(request)
        if needed not in scopes:
            raise HttpError(403, NO_SCOPE.format(needed=needed))
        had_staff_rights = row.user.is_staff
        if row.agent is not None:
            _check_agent(request, row.agent)
        user = rows.user_within(row)
        request.lacks_operate = had_staff_rights and not user.is_staff  # type: ignore[attr-defined]
        return user


def _check_agent(request: HttpRequest, agent: Agent) -> None:
    """Agents read, submit, and cancel their own jobs. Raises HttpError."""
    if agent.stopped_at is not None:
        raise HttpError(403, AGENT_STOPPED.format(name=agent.name))
    if needed_scope(request) is not TokenScope.READ and not AGENTS_MAY.fullmatch(request.path):
        raise HttpError(403, AGENT_REFUSED)
    request.agent = agent  # type: ignore[attr-defined]


def needed_scope(request: HttpRequest) -> TokenScope:
    """The least scope of a token for this request. What staff may do needs `operate` as well."""
    is_reading = request.method in {"GET", "HEAD"} or request.path in READING_POSTS
    return TokenScope.READ if is_reading else TokenScope.SUBMIT


class Browser(SessionAuth):
    """A logged-in browser; what changes something needs its CSRF token."""

    def __call__(self, request: HttpRequest) -> Any:
        if not request.user.is_authenticated:
            raise AuthenticationError(message=UNAUTHENTICATED)
        # The CSRF check reads a form, after which the body could not be read again.
        _ = request.body
        if check_csrf(request):
            raise HttpError(403, NO_CSRF)
        clients.count(request.user)
        return request.user


MODELS, SUBMISSION = "scheduler.language_models.model_services", "scheduler.submission"


def add_extension(api: DocumentedApi, prefix: str, target: str, tag: str) -> None:
    """Add the operations of an extension, if it is on."""
    if router := part(target):
        api.add_router(prefix, router, tags=[tag])


def _api() -> DocumentedApi:
    api = DocumentedApi(
        title="gpucoord",
        version=__version__,
        description=DESCRIPTION,
        auth=[Token(), Browser()],
        docs_url=None,
        urls_namespace="api",
        parser=JsonBody(),
    )
    api.add_decorator(refuse_unknown_parameters)
    api.add_router("/jobs/", scheduler_router, tags=["Jobs"])
    add_extension(api, "/prompts/", "scheduler.language_models.prompts.api:router", "Prompts")
    add_extension(api, "/tasks/", "scheduler.submission.task_records.api:router", "Tasks")
    api.add_router("/", mode_router, tags=["Mode"])
    add_extension(api, "/models/", f"{MODELS}.api:router", "Models")
    add_extension(api, "/disks/", "scheduler.disk.api:router", "Disks")
    add_extension(api, "/batches/", f"{SUBMISSION}.batches.api:router", "Batches")
    add_extension(api, "/scripts/", f"{SUBMISSION}.scripts.api:router", "Scripts")
    add_extension(api, "/idle-templates/", f"{SUBMISSION}.idle_work.api:router", "Idle work")
    api.add_router("/windows/", window_router, tags=["Time windows"])
    api.add_router("/account/notifications/", notification_router, tags=["Notifications"])
    api.add_router("/", share_router, tags=["Shares"])
    api.add_router("/users/", user_router, tags=["Users"])
    api.add_router("/", monitor_router, tags=["GPUs"])
    api.add_router("/", history_router, tags=["GPUs"])
    api.add_router("/gpus/", gpu_router, tags=["GPUs"])
    api.add_router("/hosts/", host_router, tags=["Hosts"])
    api.add_router("/policies/", policy_router, tags=["Policies"])
    api.add_router("/incidents/", incident_router, tags=["Incidents"])
    api.add_router("/incidents/", without_incident_router, tags=["Incidents"])
    api.add_router("/reports/", report_router, tags=["Reports"])
    api.add_router("/reports/", tag_router, tags=["Reports"])
    add_extension(api, "/reports/", "reports.capacity.api:router", "Reports")
    add_extension(api, "/reports/", "reports.schedule.api:router", "Reports")
    handle_errors(api)
    return api


api = _api()
urlpatterns, app_name, namespace = api.urls
for pattern in urlpatterns:
    view: Any = pattern.callback
    # Requests without a login get 401 in JSON from the API, not a redirect to the login page.
    view.login_required = False
    # A POST without the last slash must not come back as a GET.
    view.should_append_slash = False
