"""Logins by an OpenID Connect provider: a small one, with a real key and real tokens."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches
from django.utils import timezone

from gpucoord_site import urls
from gpucoord_site.config import django_values
from gpucoord_site.config.settings import Config
from monitor.owners import rows

pytestmark = pytest.mark.django_db
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Provider:
    """Set its answers about the person who logs in; `token` are changes of the token's claims."""

    url: str = ""
    user: dict[str, Any] = field(
        default_factory=lambda: {"sub": "s-1", "preferred_username": "dora", "email": "d@x.org"}
    )
    token: dict[str, Any] = field(default_factory=dict)
    challenge: str = ""
    nonce: str = ""
    key: Any = KEY

    def answer(self, path: str, form: dict[str, list[str]]) -> Any:
        if path == "/keys":
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
            return {"keys": [{**public, "kid": "k", "alg": "RS256"}]}
        if path == "/user":
            return self.user
        verifier = form["code_verifier"][0].encode()
        made = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).rstrip(b"=").decode()
        if made != self.challenge or form["client_secret"] != ["hush"]:
            return None
        now = timezone.now().timestamp()
        claims = {"iss": self.url, "aud": "gpucoord", "sub": "s-1", "exp": now + 60, "iat": now}
        claims |= {"nonce": self.nonce} | self.token
        token = jwt.encode(claims, self.key, "RS256", headers={"kid": "k"})
        return {"access_token": "a", "id_token": token}


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    found = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = found.answer(self.path, parse_qs(self.rfile.read(length).decode()))
            self.send_response(400 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    _configure(settings, found.url)
    importlib.reload(urls)
    clear_url_caches()
    yield found
    server.shutdown()
    server.server_close()
    settings.CONFIG = Config()
    importlib.reload(urls)
    clear_url_caches()


def _configure(settings: Any, url: str) -> None:
    config = Config(
        oidc_issuer=url,
        oidc_name="the university",
        oidc_client_id="gpucoord",
        oidc_client_secret="hush",
        oidc_authorization_url=f"{url}/ask",
        oidc_token_url=f"{url}/token",
        oidc_user_url=f"{url}/user",
        oidc_keys_url=f"{url}/keys",
        oidc_account_claim="unix",
    )
    settings.CONFIG = config
    for name, value in django_values.login_settings(config).items():
        setattr(settings, name, value)
    settings.AUTHENTICATION_BACKENDS = [
        *settings.AUTHENTICATION_BACKENDS,
        *django_values.backends(config),
    ]


def log_in(provider: Provider, state: str | None = None) -> User | None:
    """Follow the redirects of a login as a browser does."""
    client = Client()
    asked = client.get("/oidc/authenticate/")
    sent = {key: values[0] for key, values in parse_qs(urlsplit(asked["Location"]).query).items()}
    provider.nonce, provider.challenge = sent["nonce"], sent["code_challenge"]
    client.get("/oidc/callback/", {"code": "c", "state": state or sent["state"]})
    found = client.get("/account/")
    return found.context["user"] if found.status_code == 200 else None


def test_the_login_page_offers_the_provider(provider: Provider, client: Client) -> None:
    page = client.get("/login/").content.decode()

    assert 'href="/oidc/authenticate/"' in page
    assert "Log in with the university" in page
    assert "did not log you in" in client.get("/login/?failed=oidc").content.decode()


def test_a_person_logs_in_and_is_created(provider: Provider) -> None:
    user = log_in(provider)

    assert user is not None
    assert (user.username, user.email, user.is_staff) == ("dora", "d@x.org", False)
    assert rows.name_of(user) is None


def test_the_subject_counts_and_not_the_name(provider: Provider) -> None:
    first = log_in(provider)
    provider.user |= {"preferred_username": "renamed"}

    assert log_in(provider) == first
    assert User.objects.count() == 1


def test_a_user_with_the_same_name_is_not_taken_over(provider: Provider, alice: User) -> None:
    provider.user |= {"preferred_username": "alice"}

    assert log_in(provider) is None


def test_the_claim_names_the_account_of_a_new_user(provider: Provider, alice: User) -> None:
    provider.user |= {"unix": "dsmith"}
    user = log_in(provider)

    assert user is not None
    assert rows.name_of(user) == "dsmith"


def test_an_account_that_belongs_to_a_user_stays_theirs(provider: Provider, alice: User) -> None:
    provider.user |= {"unix": "alice"}
    log_in(provider)

    assert rows.user_of("alice") == alice


OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize(
    "change",
    [
        {"token": {"iss": "http://other"}},
        {"token": {"aud": "other"}},
        {"token": {"aud": ["a", "b"]}},
        {"token": {"exp": 1}},
        {"token": {"exp": "soon"}},
        {"token": {"nonce": "other"}},
        {"token": {"sub": "s-2"}},
        {"user": {"preferred_username": "dora"}},
        {"user": {"sub": "s-1"}},
        {"user": {"sub": "s-1", "preferred_username": "a b"}},
        {"user": {"sub": "s" * 300, "preferred_username": "dora"}, "token": {"sub": "s" * 300}},
        {"key": OTHER_KEY},
    ],
    ids=[
        "issuer", "audience", "two audiences", "expired", "no time", "nonce", "subject",
        "no subject", "no name", "bad name", "long subject", "signature",
    ],
)  # fmt: skip
def test_tokens_and_claims_that_are_wrong_are_refused(
    provider: Provider, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(provider, name, value)

    assert log_in(provider) is None
    assert not User.objects.exists()


def test_an_answer_to_another_request_is_refused(provider: Provider) -> None:
    assert log_in(provider, state="other") is None


def test_a_deactivated_user_is_refused(provider: Provider) -> None:
    log_in(provider)
    User.objects.update(is_active=False)

    assert log_in(provider) is None


def test_without_a_provider_its_pages_do_not_exist(client: Client) -> None:
    assert django_settings.CONFIG.oidc_issuer is None
    assert client.get("/oidc/callback/").status_code in (302, 404)
