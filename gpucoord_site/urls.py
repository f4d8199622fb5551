"""Addresses of all pages; each app names its own."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.urls.resolvers import RoutePattern, URLResolver

from gpucoord_site import welcome
from gpucoord_site.accounts import people_pages, sessions
from gpucoord_site.accounts import views as account_views
from gpucoord_site.accounts.sessions import OpenInvitation
from gpucoord_site.apps import load_admin
from gpucoord_site.documentation import views as documentation
from gpucoord_site.http import metrics as metrics_view


class Later(URLResolver):
    """Addresses whose module is loaded when one of them is first asked for.

    The operations of REST take a quarter of a second to build, and the loops need none.
    """

    def _populate(self) -> None:
        # The resolver above asks for all names at the first `reverse`. Names in a namespace are
        # looked up in the patterns themselves.
        if "urlconf_module" in vars(self):
            super()._populate()


load_admin()
handler500 = "gpucoord_site.http.errors.server_error"
handler400 = "gpucoord_site.http.errors.bad_request"
urlpatterns = [
    path("", include("monitor.urls")),
    path("", include("scheduler.urls")),
    path("", include("reports.urls")),
    path("docs/", documentation.index, name="docs"),
    path("docs/command-line/", documentation.command_line, name="docs-command-line"),
    path("docs/<path:name>/", documentation.chapter, name="docs-chapter"),
    path("api/docs/", documentation.docs, name="api-docs"),
    Later(RoutePattern("api/"), "gpucoord_site.http.api", app_name="ninja", namespace="api"),
    path("start/", welcome.start, name="start"),
    path("welcome/", welcome.welcome, name="welcome"),
    path("welcome/job/", welcome.submit, name="welcome-submit"),
    path("welcome/hide/", welcome.hide, name="welcome-hide"),
    path("setup/", welcome.setup, name="setup"),
    path("metrics", metrics_view.metrics, name="metrics"),
    path("login/", account_views.Login.as_view(), name="login"),
    path("login/link/<str:secret>/", sessions.open_link, name="login-link"),
    path("login/link/<str:secret>/confirm/", sessions.confirm, name="login-link-confirm"),
    path("login/invitation/<str:uidb64>/<str:token>/", OpenInvitation.as_view(), name="invitation"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("account/", account_views.account, name="account"),
    path("account/password/", account_views.Password.as_view(), name="account-password"),
    path("account/tokens/", account_views.add_token, name="account-token-add"),
    path(
        "account/tokens/<int:pk>/revoke/", account_views.revoke_token, name="account-token-revoke"
    ),
    path("account/agents/", account_views.add_agent, name="account-agent-add"),
    path("account/agents/<int:pk>/stop/", account_views.stop_agent, name="account-agent-stop"),
    path(
        "account/agents/<int:pk>/resume/", account_views.resume_agent, name="account-agent-resume"
    ),
    path(
        "account/agents/<int:pk>/remove/", account_views.remove_agent, name="account-agent-remove"
    ),
    path("account/sessions/end/", account_views.end_sessions, name="account-sessions-end"),
    path("people/", people_pages.all_people, name="people"),
    path("people/add/", people_pages.add, name="people-add"),
    path("people/<int:pk>/", people_pages.person, name="people-person"),
    path("people/<int:pk>/account/", people_pages.change_account, name="people-account"),
    path("people/<int:pk>/quota/", people_pages.change_quota, name="people-quota"),
    path("people/<int:pk>/invitation/", people_pages.invite, name="people-invite"),
    path(
        "people/<int:pk>/tokens/<int:token>/revoke/",
        people_pages.revoke_token,
        name="people-token-revoke",
    ),
    path("admin/", admin.site.urls),
]
if settings.CONFIG.oidc_issuer:
    from mozilla_django_oidc import views as oidc

    ask, answer = (
        login_not_required(oidc.OIDCAuthenticationRequestView.as_view()),
        login_not_required(oidc.OIDCAuthenticationCallbackView.as_view()),
    )
    urlpatterns += [
        path("oidc/authenticate/", ask, name="oidc_authentication_init"),
        path("oidc/callback/", answer, name="oidc_authentication_callback"),
    ]
