"""Units, container files and proxy examples: what can be checked without running them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.urls import resolve

from gpucoord_site.cli.main import COMMANDS
from gpucoord_site.config.settings import load_config, rules
from gpucoord_site.config.values import OTHER_VARIABLES, variables

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "gpucoord_site" / "deploy"
UNITS = sorted(path.name for path in DEPLOY.iterdir() if path.suffix in {".service", ".timer"})
OWN = {name for field in rules() for name in variables(field)}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    return loaded


def lines(name: str) -> list[str]:
    """Without comments and empty lines."""
    text = (DEPLOY / name).read_text()
    return [line.strip() for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]


@pytest.mark.parametrize("name", sorted(p.name for p in DEPLOY.iterdir()))
def test_each_variable_of_gpucoord_that_a_file_sets_exists(name: str) -> None:
    named = set(re.findall(r"\bGPUCOORD_[A-Z_]+\b", (DEPLOY / name).read_text()))

    # The address of the service for the example of Caddy alone.
    assert named - OWN - OTHER_VARIABLES - {"GPUCOORD_UPSTREAM"} == set()


@pytest.mark.parametrize("name", sorted(p.name for p in DEPLOY.iterdir()))
def test_each_command_of_gpucoord_that_a_file_runs_exists(name: str) -> None:
    text = (DEPLOY / name).read_text()

    assert set(re.findall(r"/bin/gpucoord ([\w-]+)", text)) <= set(COMMANDS)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS:
        text = (DEPLOY / unit).read_text().replace("/opt/gpucoord/bin/gpucoord", "/bin/true")
        (tmp_path / unit).write_text(text)

    done = subprocess.run([program, "verify", name], cwd=tmp_path, capture_output=True, text=True)

    assert [
        line for line in done.stderr.splitlines() if name in line or str(tmp_path) in line
    ] == []


def test_a_restart_of_the_unit_ends_no_job() -> None:
    unit = dict(line.partition("=")[::2] for line in lines("gpucoord.service"))

    assert unit["KillMode"] == "process"
    assert unit["Delegate"] == "yes"
    assert unit["OOMPolicy"] == "continue"


def test_the_settings_of_the_container_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GPUCOORD_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    values = {"POSTGRES_PASSWORD": "secret", "GPUCOORD_NODE": "gpu1",
              "GPUCOORD_ADMIN_PASSWORD": "correct horse",
              "GPUCOORD_ALLOWED_HOSTS": "gpu.example.org"}  # fmt: skip
    assert set(values) == {line.partition("=")[0] for line in lines("compose.env")}
    for name, text in compose()["services"]["gpucoord"]["environment"].items():
        filled = re.sub(r"\$\{(\w+)[^}]*\}", lambda m: values[m[1]], str(text))
        monkeypatch.setenv(name, filled)

    config = load_config()

    assert config.https
    assert config.database_url == "postgresql://gpucoord:secret@database:5432/gpucoord"
    assert config.metrics_networks == []


def test_compose_names_only_services_volumes_and_files_that_exist() -> None:
    parsed = compose()
    services = parsed["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            known = (
                (ROOT / source).is_file() if source.startswith(".") else source in parsed["volumes"]
            )
            assert known, volume
    assert (ROOT / services["gpucoord"]["build"]["dockerfile"]).is_file()
    # Only the proxy can be reached from other machines.
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    assert services["gpucoord"]["init"] is True


def test_the_image_gets_what_the_wheel_needs_and_no_secret() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()}

    assert ignored.isdisjoint({"templates", "static", "monitor", "scheduler", "reports", "LICENSE"})
    # A data folder or settings in the source hold secrets, too.
    assert {".git", ".env", "data", "gpucoord.toml", "*.sqlite3*"} <= ignored
    steps = lines("Dockerfile")
    assert [s for s in steps if s.startswith("ENTRYPOINT")] == ['ENTRYPOINT ["gpucoord"]']


def test_the_image_runs_commands_and_copies_files_that_exist() -> None:
    steps = "\n".join(lines("Dockerfile")).replace("\\\n", " ").splitlines()
    by_word: dict[str, list[str]] = {}
    for step in steps:
        by_word.setdefault(step.split()[0], []).append(step.partition(" ")[2])
    services = [s for s in compose()["services"].values() if "build" in s]
    commands = [json.loads(by_word["CMD"][0]), *(s["command"] for s in services if "command" in s)]
    stages = {text.split()[-1] for text in by_word["FROM"] if " AS " in text}
    copies = [text.split() for text in by_word["COPY"]]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert all(command[0] in COMMANDS for command in commands)
    for words in copies:
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            # It was made by the stage before.
            assert any(words[1] in text for text in by_word["RUN"])
        else:
            assert (ROOT / words[0]).exists()
    (extra,) = re.findall(r"'\.\[(\w+)\]'", " ".join(by_word["RUN"]))
    assert extra in extras["optional-dependencies"]
    (check,) = re.findall(r"http://127\.0\.0\.1:8000(/\w+)", " ".join(by_word["HEALTHCHECK"]))
    assert resolve(check).func is not None


def test_the_data_folder_of_the_image_is_private_and_its_jobs_do_not_run_as_root() -> None:
    steps = " ".join(lines("Dockerfile")).replace("\\ ", "")

    (folder,) = re.findall(r"GPUCOORD_DATA=(\S+)", steps)
    assert f"install -d -m 0700 {folder} " in steps
    assert f"VOLUME {folder} " in steps
    (account,) = re.findall(r"GPUCOORD_RUN_AS=(\S+)", steps)
    assert account not in {"root", "auto"}


def test_the_proxy_examples_pass_what_gpucoord_judges() -> None:
    nginx = "\n".join(lines("nginx.conf"))

    for header in ("Host $http_host", "X-Forwarded-For $remote_addr", "X-Forwarded-Proto $scheme"):
        assert f"proxy_set_header {header};" in nginx
    assert "proxy_set_header Upgrade $http_upgrade;" in nginx
    # nginx drops the headers of the server where a location sets one.
    locations = re.findall(r"location [^{]+\{([^}]*)\}", nginx)
    assert len(locations) == 3
    assert not any("proxy_set_header" in location for location in locations)
    assert "reverse_proxy {$GPUCOORD_UPSTREAM:127.0.0.1}:8000" in "\n".join(lines("Caddyfile"))


def _certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=gpu.example.org", "-keyout", folder / "privkey.pem", "-out",
         folder / "fullchain.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


def test_nginx_accepts_the_example(tmp_path: Path) -> None:
    program = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    _certificate(tmp_path)
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/ssl/gpucoord", str(tmp_path))
    (tmp_path / "site.conf").write_text(text)
    main = f"pid {tmp_path}/pid; events {{}} http {{ include {tmp_path}/site.conf; }}"
    (tmp_path / "main.conf").write_text(main)

    done = subprocess.run(
        [program, "-t", "-c", tmp_path / "main.conf"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_caddy_accepts_the_example(tmp_path: Path) -> None:
    if (program := shutil.which("caddy")) is None:
        pytest.skip("caddy is not installed")
    done = subprocess.run(
        [program, "validate", "--adapter", "caddyfile", "--config", DEPLOY / "Caddyfile"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
