"""Logins with the password of an LDAP directory: a real slapd."""

from __future__ import annotations

import pwd
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.config import django_values
from gpucoord_site.config.settings import Config
from monitor.models import OsAccount
from monitor.owners import rows
from tests.builders import NOW, PASSWORD
from tests.processes.service import wait_until

pytestmark = [pytest.mark.ldap, pytest.mark.processes, pytest.mark.django_db]
BASE = "dc=example,dc=org"
PEOPLE = f"ou=people,{BASE}"
SECRET = "directory password"
ENTRIES = f"""\
dn: {BASE}
objectClass: domain
dc: example

dn: {PEOPLE}
objectClass: organizationalUnit
ou: people
"""
PERSON = """
dn: uid={name},{people}
objectClass: inetOrgPerson
objectClass: posixAccount
uid: {name}
cn: {name}
sn: Smith
givenName: Dora
mail: {name}@example.org
uidNumber: {uid}
gidNumber: 100
homeDirectory: /home/{name}
userPassword: {password}
"""
CONFIG = """\
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
database mdb
suffix "{base}"
directory {folder}/db
"""


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a slapd with the people dora, alice and eve."""
    folder = tmp_path_factory.mktemp("slapd")
    (folder / "db").mkdir()
    (folder / "slapd.conf").write_text(CONFIG.format(folder=folder, base=BASE))
    people = {"dora": 4321, "alice": 4322, "eve": 4323}
    entries = [
        PERSON.format(name=name, uid=uid, people=PEOPLE, password=SECRET)
        for name, uid in people.items()
    ]
    (folder / "people.ldif").write_text(ENTRIES + "".join(entries))
    slapd = "/usr/sbin/slapd"
    configured = ["-f", str(folder / "slapd.conf")]
    subprocess.run(
        ["/usr/sbin/slapadd", *configured, "-l", str(folder / "people.ldif")],
        check=True,
        capture_output=True,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"ldap://127.0.0.1:{port}"
    process = subprocess.Popen([slapd, *configured, "-h", url, "-d", "0"])
    try:
        wait_until(lambda: _answers(port), 30, "slapd to listen")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@pytest.fixture(autouse=True)
def _configured(directory: str, settings: Any) -> None:
    config = Config(ldap_url=directory, ldap_users=PEOPLE, ldap_start_tls=False)
    settings.CONFIG = config
    for name, value in django_values.login_settings(config).items():
        setattr(settings, name, value)
    settings.AUTHENTICATION_BACKENDS = [
        *settings.AUTHENTICATION_BACKENDS,
        *django_values.backends(config),
    ]


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The OS accounts of this host, by name."""
    known: dict[str, int] = {}

    def entry(name: str) -> pwd.struct_passwd:
        uid = known[name]
        return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", entry)
    return known


def log_in(name: str, password: str = SECRET) -> User | None:
    client = Client()
    client.post("/login/", {"username": name, "password": password})
    found = client.get("/account/")
    return found.context["user"] if found.status_code == 200 else None


def test_a_person_of_the_directory_logs_in_and_is_created(accounts: dict[str, int]) -> None:
    user = log_in("dora")

    assert user is not None
    assert (user.username, user.email, user.first_name) == ("dora", "dora@example.org", "Dora")
    assert (user.is_staff, user.has_usable_password()) == (False, False)
    assert log_in("dora") == user


@pytest.mark.parametrize(
    ("name", "password"), [("dora", "wrong"), ("dora", ""), ("nobody-here", SECRET), ("*", SECRET)]
)
def test_other_names_and_passwords_are_refused(name: str, password: str) -> None:
    assert log_in(name, password) is None
    assert not User.objects.exists()


def test_an_account_with_the_same_uid_belongs_to_the_person(accounts: dict[str, int]) -> None:
    accounts["dora"] = 4321

    user = log_in("dora")
    assert user is not None
    assert rows.name_of(user) == "dora"


def test_an_account_with_another_uid_is_another_person(accounts: dict[str, int]) -> None:
    accounts["dora"] = 5555

    user = log_in("dora")
    assert user is not None
    assert rows.name_of(user) is None


def test_a_user_with_the_same_name_is_not_taken_over(alice: User, accounts: dict[str, int]) -> None:
    """That user has a password here, and may be another person."""
    assert log_in("alice") is None
    assert log_in("alice", PASSWORD) == alice


def test_the_user_of_the_same_account_is_the_same_person(accounts: dict[str, int]) -> None:
    accounts["eve"] = 4323
    by_ssh = rows.person_of("eve", NOW)

    assert log_in("eve") == by_ssh


def test_staff_are_not_taken_over_by_their_account(accounts: dict[str, int]) -> None:
    accounts["eve"] = 4323
    User.objects.create_superuser("admin", password=PASSWORD)
    OsAccount.objects.update(name="eve")

    assert log_in("eve") is None


def test_a_deactivated_user_is_refused(accounts: dict[str, int]) -> None:
    log_in("dora")
    User.objects.update(is_active=False)

    assert log_in("dora") is None
