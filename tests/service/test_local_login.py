from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from gpucoord_site.accounts import local_login
from gpucoord_site.accounts.local_login import Refused, RequestLimits, give_token, login
from gpucoord_site.cli import local_login as client
from gpucoord_site.config.settings import Config
from monitor.facts.accounts import Peer
from monitor.models import ApiToken, AuditEntry, OsAccount
from monitor.owners import rows
from monitor.owners.policy import parse_rule
from tests.builders import NOW

ANY = parse_rule("any")
CONFIG = Config(node="gpubox")
PEER = Peer(pid=4711, uid=1001, account="dora")


def peer(account: str = "dora", **changes: Any) -> Peer:
    return Peer(**{"pid": 4711, "uid": 1001, "account": account, **changes})


@pytest.mark.django_db
class TestLogin:
    def test_a_person_is_created_at_the_first_contact(self) -> None:
        user = login(PEER, ANY, CONFIG, NOW)

        assert (user.username, user.has_usable_password()) == ("dora", False)
        assert (user.is_staff, user.is_superuser) == (False, False)
        assert OsAccount.objects.get(user=user).name == "dora"
        assert AuditEntry.objects.get().action == "USER_CREATED"

    def test_the_second_contact_finds_the_same_person(self) -> None:
        assert login(PEER, ANY, CONFIG, NOW) == login(PEER, ANY, CONFIG, NOW)
        assert User.objects.count() == 1

    def test_the_account_counts_and_not_the_name(self, alice: User, bob: User) -> None:
        OsAccount.objects.all().delete()
        rows.assign(alice, "bob", NOW, "")

        assert login(peer("bob"), ANY, CONFIG, NOW) == alice

    def test_a_user_without_the_account_is_not_taken_for_its_person(self, alice: User) -> None:
        OsAccount.objects.all().delete()

        with pytest.raises(Refused, match="without the OS account alice"):
            login(peer("alice"), ANY, CONFIG, NOW)
        assert not OsAccount.objects.exists()

    def test_the_account_of_model_servers_gets_no_user(self) -> None:
        with pytest.raises(Refused, match="runs model servers"):
            login(peer("gpucoord-models"), ANY, CONFIG, NOW)
        assert not User.objects.exists()

    def test_known_creates_no_one(self, alice: User) -> None:
        rule = parse_rule("known")

        assert login(peer("alice"), rule, CONFIG, NOW) == alice
        with pytest.raises(Refused, match="belongs to no user"):
            login(PEER, rule, CONFIG, NOW)
        assert not User.objects.filter(username="dora").exists()

    def test_a_deactivated_user_is_refused(self, alice: User) -> None:
        User.objects.update(is_active=False)

        with pytest.raises(Refused, match="deactivated"):
            login(peer("alice"), ANY, CONFIG, NOW)

    def test_a_superuser_is_refused_unless_configured(self, root: User) -> None:
        OsAccount.objects.update(name="ruth")

        with pytest.raises(Refused, match="local_superusers = false"):
            login(peer("ruth"), ANY, CONFIG, NOW)
        assert login(peer("ruth"), parse_rule("any", includes_superusers=True), CONFIG, NOW) == root

    @pytest.mark.parametrize(
        "administrator", [peer("root", uid=0), peer("gpucoord", uid=998, is_service=True)]
    )
    def test_root_and_the_account_of_the_service_are_administrators(
        self, root: User, administrator: Peer
    ) -> None:
        assert login(administrator, ANY, Config(admin_user="root"), NOW) == root
        with pytest.raises(Refused, match="no superuser"):
            login(administrator, ANY, Config(admin_user="other"), NOW)


@pytest.mark.django_db
class TestTokens:
    def test_a_token_is_valid_for_ten_minutes_on_this_host(
        self, alice: User, settings: Any
    ) -> None:
        settings.CONFIG = CONFIG
        text = give_token(alice, "gpubox", NOW)

        assert rows.authenticate(text, NOW + timedelta(minutes=9)) == alice
        assert rows.authenticate(text, NOW + timedelta(minutes=10)) is None
        settings.CONFIG = Config(node="other")
        assert rows.authenticate(text, NOW) is None

    def test_expired_tokens_of_logins_are_deleted_and_others_kept(self, alice: User) -> None:
        rows.create_token(alice, NOW, lives=timedelta(minutes=1), name="mine")
        give_token(alice, "gpubox", NOW)
        give_token(alice, "gpubox", NOW + timedelta(hours=1))

        assert sorted(ApiToken.objects.values_list("name", flat=True)) == [
            "SSH login on gpubox",
            "mine",
        ]

    def test_each_login_is_audited(self, alice: User) -> None:
        give_token(alice, "gpubox", NOW)

        entry = AuditEntry.objects.get(action="LOCAL_LOGIN")
        assert (entry.by, entry.subject) == ("alice", "user alice")


def test_an_account_gets_a_bounded_number_of_answers() -> None:
    limits = RequestLimits()

    def one(at_s: float, uid: int = 1001) -> bool:
        begun = limits.begin(uid, at_s)
        if begun:
            limits.end(uid)
        return begun

    served = [one(0.0) for _ in range(local_login.MOST_REQUESTS + 20)]

    assert served.count(True) == local_login.MOST_REQUESTS
    assert one(0.0, uid=1002)
    assert one(local_login.WINDOW_S)


def test_an_account_has_a_bounded_number_of_open_requests() -> None:
    limits = RequestLimits()

    begun = [limits.begin(1001, 0.0) for _ in range(local_login.MOST_OPEN + 3)]
    limits.end(1001)

    assert begun.count(True) == local_login.MOST_OPEN
    assert limits.begin(1001, 0.0)


def test_refusals_of_an_account_are_logged_once_a_minute() -> None:
    limits = RequestLimits()

    assert [limits.is_first_refusal(1001, at) for at in (0.0, 1.0, 59.0, 60.0)] == [
        True,
        False,
        False,
        True,
    ]


@dataclass
class FakeListener:
    """A Unix socket that answers each connection with the same bytes, from a thread."""

    listening: socket.socket
    answers: list[bytes]
    asked: list[bytes]

    def start(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self.answers:
            # A client that believes nothing closes the connection.
            with suppress(OSError), self.listening.accept()[0] as connection:
                answer = self.answers.pop(0)
                if request := connection.recv(64):
                    self.asked.append(request)
                    connection.sendall(answer)


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeListener]:
    monkeypatch.setattr(client, "SYSTEM_FOLDER", tmp_path / "absent")
    monkeypatch.setattr(client, "SHARED_FOLDER", tmp_path)
    monkeypatch.setattr(client, "PAUSES_S", (0.0, 0.0))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(client.shared_path(8000)))
        listening.listen()
        yield FakeListener(listening, [], [])


URL = "http://127.0.0.1:8000"


def answered(listener: FakeListener, *answers: object) -> Any:
    listener.answers += [json.dumps(answer).encode() for answer in answers]
    listener.start()
    return client.ask(URL, "token")


def test_the_client_finds_the_socket_by_the_port(listener: FakeListener) -> None:
    assert answered(listener, {"token": "gpc_x"}) == {"token": "gpc_x"}
    assert listener.asked == [b"token\n"]


def test_the_client_tries_again_when_the_service_is_busy(listener: FakeListener) -> None:
    busy = {"error": "later", "retry": True}

    assert answered(listener, busy, busy, {"token": "gpc_x"}) == {"token": "gpc_x"}


def test_an_answer_before_the_request_is_read_arrives(listener: FakeListener) -> None:
    """As a service answers that refuses a flood at once."""

    def serve() -> None:
        for answer in (b"", b'{"error": "busy", "retry": true}\n', b'{"token": "gpc_x"}\n'):
            with listener.listening.accept()[0] as connection:
                connection.sendall(answer)
                time.sleep(0.05)

    threading.Thread(target=serve, daemon=True).start()
    assert client.ask(URL, "token") == {"token": "gpc_x"}


def test_a_refusal_is_a_sentence(listener: FakeListener) -> None:
    with pytest.raises(client.LoginRefused, match="not you"):
        answered(listener, {"error": "not you"})


def test_the_listener_of_a_stranger_is_not_believed(
    listener: FakeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "trusted_uids", lambda: {4_000_000})

    with pytest.raises(client.LoginRefused, match="neither root nor the service account"):
        answered(listener, {"token": "gpc_x"})
    assert listener.asked == []


def test_an_answer_that_is_not_ours_is_named(listener: FakeListener) -> None:
    with pytest.raises(client.LoginRefused, match="did not answer as gpucoord"):
        answered(listener, ["token"])


def test_without_a_socket_there_is_no_answer(listener: FakeListener) -> None:
    assert client.ask("http://127.0.0.1:8001", "token") is None


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://127.0.0.1:8000", 8000),
        ("http://localhost:8000/", 8000),
        ("http://[::1]:9", 9),
        ("http://127.1.2.3", 80),
        ("https://localhost", 443),
        ("http://127.0.0.1.example.org:8000", None),
        ("http://127.example:8000", None),
        ("http://gpubox:8000", None),
        ("http://10.0.0.1:8000", None),
        ("http://localhost:x", None),
        ("localhost:8000", None),
        ("ftp://localhost:8000", None),
        ("http://[::1", None),
    ],
)
def test_only_a_loopback_address_is_local(url: str, port: int | None) -> None:
    assert client.local_port(url) == port
