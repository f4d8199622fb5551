from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpucoord_site.config.settings import ConfigError, load_config
from gpucoord_site.http.clients import is_within
from monitor.gpus.rows import snapshot as snapshots
from monitor.owners import rows
from monitor.pages import metrics as monitor_metrics
from tests.builders import gpu, process, snapshot
from tests.monitor.scrape import Scrape

pytestmark = pytest.mark.django_db
AWAY = "192.0.2.7"


def token(user: User, **changes: Any) -> str:
    _, text = rows.create_token(user, timezone.now(), **changes)
    return text


def ask(client: Client, address: str = AWAY, bearer: str | None = None, **meta: str) -> Any:
    if bearer is not None:
        meta["HTTP_AUTHORIZATION"] = f"Bearer {bearer}"
    return client.get("/metrics", REMOTE_ADDR=address, **meta)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_read_without_a_token(client: Client, address: str) -> None:
    response = ask(client, address)

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=0.0.4")


def test_a_refused_client_gets_the_requirements_in_plain_text(client: Client) -> None:
    response = ask(client)

    assert response.status_code == 401
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["WWW-Authenticate"] == 'Bearer realm="gpucoord"'
    assert "gpucoord token USER" in response.content.decode()
    assert "metrics_allow" in response.content.decode()


def test_a_token_opens_it_from_anywhere(client: Client, alice: User) -> None:
    assert ask(client, bearer=token(alice)).status_code == 200


def test_a_wrong_token_is_refused_even_from_here(client: Client) -> None:
    response = ask(client, "127.0.0.1", bearer="gpc_wrong")

    assert response.status_code == 401
    assert "expired or revoked" in response.content.decode()


def test_an_expired_token_is_refused(client: Client, alice: User) -> None:
    assert ask(client, bearer=token(alice, lives=timedelta(seconds=-1))).status_code == 401


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Proto", "Forwarded", "Via"])
def test_who_comes_through_a_proxy_of_this_machine_needs_a_token(
    client: Client, alice: User, header: str
) -> None:
    through = {f"HTTP_{header.upper().replace('-', '_')}": AWAY}

    assert ask(client, "127.0.0.1", **through).status_code == 401
    assert ask(client, "127.0.0.1", token(alice), **through).status_code == 200


def test_the_setting_allows_networks() -> None:
    allowed = load_config(metrics_allow="10.0.0.0/8, 192.0.2.7, fd00::/8").metrics_networks

    assert [is_within(a, allowed) for a in ("10.9.8.7", AWAY, "fd00::5")] == [True] * 3
    assert [is_within(a, allowed) for a in ("127.0.0.1", "192.0.2.8", "")] == [False] * 3


def test_an_empty_list_requires_a_token_from_all_clients() -> None:
    assert not is_within("127.0.0.1", load_config(metrics_allow=[]).metrics_networks)


@pytest.mark.parametrize("changes", [{"https": True}, {"allowed_hosts": "gpu.example.org"}])
def test_a_service_for_other_machines_needs_a_token_from_this_machine_too(
    client: Client, settings: Any, alice: User, changes: dict[str, Any]
) -> None:
    settings.CONFIG = load_config(**changes)

    # A proxy without forwarding headers looks like this machine.
    assert ask(client, "127.0.0.1").status_code == 401
    assert ask(client, "127.0.0.1", bearer=token(alice)).status_code == 200


def test_the_setting_opens_it_to_this_machine_also_behind_a_proxy() -> None:
    config = load_config(https=True, metrics_allow="127.0.0.1")

    assert config.metrics_networks == ["127.0.0.1"]
    assert load_config().metrics_networks == ["127.0.0.1", "::1"]


def test_a_bad_network_is_named() -> None:
    with pytest.raises(ConfigError, match=r'"10\.0\.0\.0/99" must be an address or network'):
        load_config(metrics_allow="127.0.0.1, 10.0.0.0/99")


def test_only_reading_is_possible(client: Client) -> None:
    assert client.post("/metrics", REMOTE_ADDR="127.0.0.1").status_code == 405


def test_it_is_never_cached(client: Client) -> None:
    assert "no-store" in ask(client, "127.0.0.1")["Cache-Control"]


@pytest.fixture
def two_gpus() -> None:
    now = timezone.now()
    snapshots.record(snapshot([gpu(0, temperature_c=61.0), gpu(1)], [process()], at=now))


def test_every_line_can_be_parsed(client: Client, two_gpus: None) -> None:
    found = Scrape(ask(client, "127.0.0.1").content.decode())

    assert found.value("gpu_temperature_celsius", index="0") == 61
    assert found.value("gpu_other_processes_count", index="0") == 1
    assert found.values("gpucoord_scrape_duration_seconds")[0] > 0
    assert found.values("gpucoord_queue_oldest_wait_seconds") == [0]


def test_no_metric_comes_twice_with_the_same_labels(client: Client, two_gpus: None) -> None:
    found = Scrape(ask(client, "127.0.0.1").content.decode())

    series = [(s.name, tuple(sorted(s.labels.items()))) for s in found.samples]
    assert len(series) == len(set(series))
    assert all(family.documentation for family in found.families.values())


def test_openmetrics_is_returned_on_request(client: Client, two_gpus: None) -> None:
    wanted = "application/openmetrics-text;version=1.0.0"
    response = ask(client, "127.0.0.1", HTTP_ACCEPT=wanted)

    assert response["Content-Type"].startswith(wanted.split(";")[0])
    assert len(list(text_string_to_metric_families(response.content.decode()))) > 20


def test_a_strange_accept_header_gets_plain_text(client: Client) -> None:
    response = ask(client, "127.0.0.1", HTTP_ACCEPT="application/openmetrics-text;version=x.y")

    assert response["Content-Type"].startswith("text/plain; version=0.0.4")


def test_a_database_that_is_away_is_said(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OperationalError("it is away")

    monkeypatch.setattr(monitor_metrics, "add_metrics", away)

    response = ask(client, "127.0.0.1")

    assert response.status_code == 503
    assert response["Content-Type"].startswith("text/plain")
