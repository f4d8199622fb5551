"""The port of the endpoint for language models: the page's port + 1, or as it is set."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucoord_site.config.settings import Config
from gpucoord_site.service import listeners
from gpucoord_site.service.listeners import EndpointSocket
from monitor.runtime.probes import service_state
from scheduler.language_models.model_proxy import rows as proxy_rows
from scheduler.language_models.model_services import rows

HOST = "127.0.0.1"


@pytest.fixture
def free() -> int:
    with socket.create_server((HOST, 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(autouse=True)
def _a_service_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_rows, "exists", lambda: True)


@pytest.fixture
def made(settings: Any, tmp_path: Path) -> Iterator[Any]:
    sockets = []

    def make(web_port: int, **config: Any) -> EndpointSocket:
        settings.CONFIG = Config(data=tmp_path, **config)
        sockets.append(EndpointSocket(HOST, web_port))
        sockets[-1].look()
        return sockets[-1]

    yield make
    for each in sockets:
        each.close()


def test_the_default_is_the_port_of_the_page_plus_1(made: Any, free: int) -> None:
    assert made(free - 1, port=free - 1).port == free


def test_a_port_that_is_set_is_used(made: Any, free: int) -> None:
    assert made(8000, port=8000, models_port=free).port == free


@pytest.mark.parametrize("config", [{"port": 0}, {"port": 8000, "models_port": 0}])
def test_0_takes_a_free_port(made: Any, config: dict[str, int]) -> None:
    assert made(8000, **config).port not in (None, 0, 8001)


def test_a_taken_port_is_a_problem_with_the_setting_and_used_once_it_is_free(made: Any) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        endpoint = made(port - 1, port=port - 1)
        assert endpoint.port is None
        assert endpoint.problem == (
            "The endpoint for language models can't listen:"
            f" Port {port} on {HOST} is taken. Choose another with models_port."
        )
    endpoint._looked_t -= listeners.LOOK_EVERY_S
    endpoint.look()

    assert (endpoint.port, endpoint.problem) == (port, "")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("gpubox:8000", "http://gpubox:8001/v1"),
        ("gpubox", "http://gpubox:8001/v1"),
        ("[::1]:8000", "http://[::1]:8001/v1"),
    ],
)
def test_rest_names_the_endpoint_under_the_host_name_of_the_client(
    settings: Any, tmp_path: Path, page: str, expected: str
) -> None:
    settings.DATA = tmp_path
    (tmp_path / "run").mkdir()
    state = service_state.ServiceState(
        pid=1, boot_id="", command="", version="", address="http://127.0.0.1:8000/",
        started_t=0.0, models_address="http://127.0.0.1:8001/",
    )  # fmt: skip
    service_state.write(tmp_path / "run", state)

    assert rows.base_url(page) == expected
