"""REST: one API of the apps' routers, for bearer tokens and for logged-in browsers."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError
from ninja.security import HttpBearer, SessionAuth
from ninja.utils import check_csrf

from gpucoord_site import __version__, security_log
from gpucoord_site.api_errors import handle_errors
from monitor import access
from monitor.api import router as monitor_router
from monitor.gpu_api import router as gpu_router
from monitor.incident_api import router as incident_router
from scheduler.api import router as scheduler_router
from scheduler.mode_api import router as mode_router
from scheduler.share_api import router as share_router
from scheduler.window_api import router as window_router

WHO = "Log in, or send a token: Authorization: Bearer TOKEN. `gpucoord token USER` makes one."
REFUSED = "This token is unknown, expired or revoked. `gpucoord token USER` makes a new one."
NO_CSRF = "The CSRF token is missing or wrong: send the gpucoord_csrf cookie as X-CSRFToken too."
DESCRIPTION = "See the GPUs, submit jobs and follow them. Times are ISO 8601, sizes in bytes."


class Token(HttpBearer):
    """A token made by `gpucoord token USER`."""

    def authenticate(self, request: HttpRequest, token: str) -> User:
        user = access.authenticate(token.strip(), timezone.now())
        if user is None:
            security_log.token_refused(request)
            raise AuthenticationError(message=REFUSED)
        return user


class Browser(SessionAuth):
    """A logged-in browser; what changes something needs its CSRF token."""

    def __call__(self, request: HttpRequest) -> Any:
        if not request.user.is_authenticated:
            raise AuthenticationError(message=WHO)
        if check_csrf(request):
            raise HttpError(403, NO_CSRF)
        return request.user


def _api() -> NinjaAPI:
    made = NinjaAPI(
        title="gpucoord",
        version=__version__,
        description=DESCRIPTION,
        auth=[Token(), Browser()],
        docs_url=None,
        urls_namespace="api",
    )
    made.add_router("/jobs/", scheduler_router, tags=["Jobs"])
    made.add_router("/", mode_router, tags=["Mode"])
    made.add_router("/windows/", window_router, tags=["Agreed times"])
    made.add_router("/", share_router, tags=["Shares"])
    made.add_router("/", monitor_router, tags=["GPUs"])
    made.add_router("/gpus/", gpu_router, tags=["GPUs"])
    made.add_router("/incidents/", incident_router, tags=["Incidents"])
    handle_errors(made)
    return made


api = _api()
urls = api.urls
for pattern in urls[0]:
    view: Any = pattern.callback
    # Who is not known gets 401 in JSON from the API itself, never a redirect to the login page.
    view.login_required = False
    # A POST without the last slash must not come back as a GET.
    view.should_append_slash = False
