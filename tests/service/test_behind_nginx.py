"""The example for nginx in front of a real service: TLS, WebSockets, the address of the client."""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.bench.bench_live import log_in
from tests.pace import LONGEST_S
from tests.processes.service import Service, token, wait_until
from tests.service.postgres_cluster import free_port

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
EXAMPLE = Path(__file__).parents[2] / "gpucoord_site/deploy/nginx.conf"
NAME = "gpu.example.org"
MAIN = """\
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 100; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/gpucoord.conf;
}}
"""
pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx"),
]


@dataclass(frozen=True)
class Proxy:
    service: Service
    port: int
    plain_port: int
    trusted: ssl.SSLContext

    def connection(self, client: str = "127.0.0.1") -> ssl.SSLSocket:
        """From this address of a client."""
        raw = socket.create_connection(
            ("127.0.0.1", self.port), timeout=LONGEST_S, source_address=(client, 0)
        )
        return self.trusted.wrap_socket(raw, server_hostname=NAME)

    def ask(self, head: str, client: str = "127.0.0.1") -> bytes:
        """The beginning of the answer to a request; `head`: its first line and more headers."""
        first, _, more = head.partition("\n")
        with self.connection(client) as connection:
            request = f"{first} HTTP/1.1\nHost: {NAME}:{self.port}\n{more}\n\n"
            connection.sendall(request.replace("\n", "\r\n").encode())
            return connection.recv(65_536)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    folder = tmp_path / "nginx"
    folder.mkdir()
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    made += ["-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem")]
    made += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run(made, check=True, capture_output=True)
    port, plain = free_port(), free_port()
    env = {"GPUCOORD_HTTPS": "true", "GPUCOORD_ALLOWED_HOSTS": NAME}
    with Service(tmp_path / "data", **env) as service:
        upstream = re.search(r":(\d+)/", service.address)
        assert upstream
        text = EXAMPLE.read_text().replace("/etc/ssl/gpucoord", str(folder))
        text = re.sub(r" *listen \[::\].*\n", "", text)
        text = text.replace("listen 80;", f"listen 127.0.0.1:{plain};")
        text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;")
        (folder / "gpucoord.conf").write_text(text.replace(":8000", f":{upstream[1]}"))
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
        command = [str(NGINX), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: _listens(port), 20, "nginx")
            trusted = ssl.create_default_context(cafile=folder / "fullchain.pem")
            yield Proxy(service, port, plain, trusted)
        finally:
            process.terminate()
            process.wait(LONGEST_S)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_the_example_for_nginx_serves_pages_sockets_and_the_address_of_the_client(
    proxy: Proxy,
) -> None:
    plain = httpx.get(
        f"http://127.0.0.1:{proxy.plain_port}/jobs/", headers={"Host": NAME}, timeout=LONGEST_S
    )
    assert (plain.status_code, plain.headers["location"]) == (301, f"https://{NAME}/jobs/")
    health = "GET /healthz\nConnection: close"
    wait_until(lambda: _status(proxy.ask(health)) == 200, 60, "the loops run")

    # A client cannot claim to be this machine, for which /metrics may be open.
    spoofed = "Connection: close\nX-Forwarded-For: 127.0.0.1"
    assert _status(proxy.ask(f"GET /metrics\n{spoofed}")) == 401
    bearer = f"Authorization: Bearer {token(proxy.service)}"
    assert _status(proxy.ask(f"GET /metrics\nConnection: close\n{bearer}")) == 200

    cookie = log_in(proxy.service, 1)[0]
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = (
        f"Upgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Version: 13\nCookie: {cookie}"
    )
    live = f"GET /ws/live/?on=dashboard\n{upgrade}\nSec-WebSocket-Key: {key}"
    assert _status(proxy.ask(f"{live}\nOrigin: https://{NAME}:{proxy.port}")) == 101
    assert _status(proxy.ask(f"{live}\nOrigin: https://evil.example")) == 403

    _fail_to_log_in(proxy, "127.0.0.9")
    wait_until(lambda: "address=127.0.0.9" in proxy.service.text(), 20, "the failed login")
    assert "address=203.0.113.7" not in proxy.service.text()


def _fail_to_log_in(proxy: Proxy, client: str) -> None:
    page = proxy.ask("GET /login/\nConnection: close", client).decode()
    cookie = re.search(r"Set-Cookie: (gpucoord_csrf=[^;]+)", page, re.IGNORECASE)
    assert cookie
    body = f"csrfmiddlewaretoken={cookie[1].partition('=')[2]}&username=mallory&password=guess"
    origin = f"https://{NAME}:{proxy.port}"
    answer = proxy.ask(
        f"POST /login/\nConnection: close\nCookie: {cookie[1]}\nOrigin: {origin}\n"
        f"X-Forwarded-For: 203.0.113.7\nContent-Type: application/x-www-form-urlencoded\n"
        f"Content-Length: {len(body)}\n\n{body}",
        client,
    )
    assert _status(answer) == 200
