"""Backups of PostgreSQL, and moves of all rows between SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.processes.service import ROOT
from tests.service.postgres_cluster import cluster

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

FILL = """
from datetime import timedelta
import django
django.setup()
from django.contrib.auth.models import User
from django.utils import timezone
from monitor.models import Gpu, GpuMinute, LatestSnapshot
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows.changes import submit
from scheduler.models import Job
now = timezone.now()
user = User.objects.create_superuser("adä", password="x")
gpu = Gpu.objects.create(uuid="GPU-1", host="n", index=0, state_since_at=now, first_seen_at=now,
                         last_seen_at=now, memory_total_bytes=80 * 2**30, simulated=True)
sums = dict(utilization_pct_s=1.5, utilization_known_s=60, memory_byte_s=2**52, memory_known_s=60,
            energy_j=0.1, power_known_s=60, seen_s=60)
GpuMinute.objects.bulk_create(GpuMinute(gpu=gpu, t=60 * n, **sums) for n in range(1200))
LatestSnapshot.objects.create(host="n", seq=7, at=now, body='{"a": "\\u2028"}', owned=1)
for n in range(3):
    submit(NewJob(command=f"echo {n} 'é'", requirement=Requirement(gpus=1),
                  env={"A": "ü"}), user, now + timedelta(microseconds=n))
Job.objects.filter(pk=2).delete()
"""
CONTENT = """
import json
import django
django.setup()
from django.apps import apps
from django.contrib.auth.models import User
from django.utils import timezone
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows.changes import submit
def text(row):
    # jsonb keeps no order of keys.
    return json.dumps(row, default=str, sort_keys=True)
rows = {m._meta.label: sorted(map(text, m._base_manager.values()))
        for m in apps.get_models(include_auto_created=True) if m._meta.managed}
job = submit(NewJob(command="x", requirement=Requirement()), User.objects.get(), timezone.now())
print(json.dumps([rows, job.pk]))
"""


class Installation:
    """A data folder, and the database of DATABASE_URL or SQLite."""

    def __init__(self, data: Path, url: str | None = None) -> None:
        self.data, self.url = data, url
        own = {"GPUCOORD_DATA": str(data), "GPUCOORD_PROBE": "simulated", "PYTHONPATH": str(ROOT)}
        own |= {"DJANGO_SETTINGS_MODULE": "gpucoord_site.settings", "GPUCOORD_RUN_AS": "nobody"}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("GPUCOORD_")} | own
        self.env.pop("DATABASE_URL", None)
        if url:
            self.env["DATABASE_URL"] = url

    @property
    def address(self) -> str:
        assert self.url
        return self.url

    def run(self, *argv: str, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, *argv], env=self.env, cwd=self.data.parent, capture_output=True,
            text=True,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stderr[-3000:]
        return done.stderr if fails else done.stdout

    def gpucoord(self, *argv: str, fails: bool = False) -> str:
        return self.run("-m", "gpucoord_site", *argv, fails=fails)

    def content(self) -> Any:
        """All rows as text by model, and the id of a job that is submitted afterwards."""
        return json.loads(self.run("-c", CONTENT))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with cluster() as address:
        yield address


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with rows."""
    lite = Installation(tmp_path_factory.mktemp("filled") / "data")
    lite.gpucoord("migrate", "--verbosity=0")
    lite.run("-c", FILL)
    return lite.data


@pytest.fixture
def lite(filled: Path, tmp_path: Path) -> Installation:
    return Installation(Path(shutil.copytree(filled, tmp_path / "lite")))


@pytest.fixture(scope="module")
def template(server: str, filled: Path) -> str:
    """The name of a database of PostgreSQL with the same rows."""
    Installation(filled).gpucoord("move-database", new_database(server, "template_rows"))
    return "template_rows"


@pytest.fixture
def big(server: str, template: str, filled: Path, tmp_path: Path) -> Installation:
    name = f"copy_{abs(hash(tmp_path))}"
    url = new_database(server, f"{name} TEMPLATE {template}").partition(" ")[0]
    return Installation(Path(shutil.copytree(filled, tmp_path / "big")), url)


def new_database(server: str, name: str) -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return server.removesuffix("postgres") + name


def tables(url: str) -> set[str]:
    query = (
        "SELECT schemaname || '.' || tablename FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    with psycopg.connect(url) as connection:
        return {name for (name,) in connection.execute(query)}


def test_rows_move_to_postgresql_and_back(server: str, lite: Installation, tmp_path: Path) -> None:
    url = new_database(server, "moved")

    said = lite.gpucoord("move-database", url)

    assert "all counts are equal" in said
    assert "secret" not in said
    big = Installation(lite.data, url)
    refused = lite.gpucoord("move-database", url, fails=True)
    assert "has tables already" in refused

    before = _rows(lite.data / "gpucoord.sqlite3")
    (lite.data / "gpucoord.sqlite3").rename(tmp_path / "original.sqlite3")
    big.gpucoord("move-database", "sqlite")
    assert _rows(lite.data / "gpucoord.sqlite3") == before

    elsewhere = Installation(tmp_path / "new folder", url)
    elsewhere.gpucoord("move-database", "sqlite")
    assert _rows(elsewhere.data / "gpucoord.sqlite3") == before
    assert elsewhere.data.stat().st_mode & 0o777 == 0o700

    original = Installation(tmp_path / "original")
    original.data.mkdir()
    (tmp_path / "original.sqlite3").rename(original.data / "gpucoord.sqlite3")
    contents = [installation.content() for installation in (original, big, lite)]
    assert {number for _, number in contents} == {4}
    for rows, _ in contents[1:]:
        different = [label for label in contents[0][0] if rows[label] != contents[0][0][label]]
        assert different == [], (rows[different[0]][:3], contents[0][0][different[0]][:3])


def _rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name != "sqlite_sequence"
        ]
        return {n: database.execute(f"SELECT count(*) FROM {n}").fetchone()[0] for n in names}


def test_a_database_of_postgresql_is_restored_again_and_again(
    big: Installation, tmp_path: Path
) -> None:
    # Twice: the first restore leaves a schema of its own, with another owner.
    for turn in range(2):
        file = str(tmp_path / f"{turn}.tar.gz")
        big.gpucoord("backup", file)
        with psycopg.connect(big.address) as connection:
            connection.execute("DROP TABLE scheduler_attempt CASCADE")
            connection.execute("CREATE TABLE newer (n int)")
        assert "--replace" in big.gpucoord("restore", file, fails=True)
        big.gpucoord("restore", "--replace", file)
        assert "public.newer" not in tables(big.address)
        assert {name.partition(".")[0] for name in tables(big.address)} == {"public"}
    rows, number = big.content()
    assert (len(rows["scheduler.Job"]), number) == (2, 4)


def test_a_database_with_the_encoding_sql_ascii_is_restored(server: str, tmp_path: Path) -> None:
    options = "ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    url = new_database(server, f"plain {options}").partition(" ")[0]
    plain = Installation(tmp_path / "plain", url)
    plain.gpucoord("migrate", "--verbosity=0")
    before, file = tables(url), str(tmp_path / "backup.tar.gz")
    plain.gpucoord("backup", file)

    plain.gpucoord("restore", "--replace", file)

    assert before
    assert before <= tables(url)


def test_a_move_to_an_encoding_that_cannot_hold_every_text_is_refused_with_the_remedy(
    server: str, lite: Installation
) -> None:
    options = "ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    url = new_database(server, f"ascii {options}").partition(" ")[0]

    said = lite.gpucoord("move-database", url, fails=True)

    assert "has the encoding SQL_ASCII" in said
    assert "createdb --encoding UTF8 --template template0" in said
    assert tables(url) == set()
    assert "encoding SQL_ASCII" in Installation(lite.data, url).gpucoord("check")


def test_a_move_that_fails_leaves_nothing_in_the_target(server: str, lite: Installation) -> None:
    url = new_database(server, "refused")
    with closing(sqlite3.connect(lite.data / "gpucoord.sqlite3")) as database:
        # SQLite takes a text of any length; PostgreSQL does not.
        database.execute("UPDATE monitor_gpu SET name = ?", ["x" * 500])
        database.commit()

    said = lite.gpucoord("move-database", url, fails=True)

    assert "A row can't be copied: value too long" in said
    assert tables(url) == set()


def test_a_restore_that_fails_leaves_the_tables_as_they_were(
    big: Installation, tmp_path: Path
) -> None:
    file, url = tmp_path / "b.tar.gz", big.address
    with psycopg.connect(url) as connection:
        # The dump creates it too; so the restore fails in the middle.
        connection.execute("CREATE SCHEMA other")
        connection.execute("CREATE TABLE other.t (n int)")
    big.gpucoord("backup", str(file))
    content = big.content()

    said = big.gpucoord("restore", "--replace", str(file), fails=True)

    assert "pg_restore failed" in said
    assert "public.scheduler_job" in tables(url)
    assert not any(name.startswith("gpucoord_replaced") for name in tables(url))
    rows, number = big.content()
    assert len(rows["scheduler.Job"]) == len(content[0]["scheduler.Job"]) + 1
    assert number == content[1] + 1


def test_tables_that_another_host_uses_are_not_replaced(big: Installation, tmp_path: Path) -> None:
    big.gpucoord("backup", str(tmp_path / "b.tar.gz"))
    with psycopg.connect(big.address) as connection:
        connection.execute(
            "INSERT INTO monitor_lease (name, loop, host, every_s, pid, boot_id, epoch, expires_at,"
            " ticks, last_error, last_error_key) VALUES ('sampler:b', 'sampler', 'b', 1, 7, '', 1,"
            " now() + interval '1 hour', 0, '', '')"
        )

    for argv in (("restore", "--replace", str(tmp_path / "b.tar.gz")), ("move-database", "sqlite")):
        assert "gpucoord runs on this database (b)" in big.gpucoord(*argv, fails=True)


def test_the_password_of_the_target_is_not_in_a_message(tmp_path: Path) -> None:
    lite = Installation(tmp_path / "lite")
    lite.data.mkdir()
    (lite.data / "gpucoord.sqlite3").touch()

    said = lite.gpucoord("move-database", "postgresql://u:hunter2@127.0.0.1:1/x", fails=True)

    assert "can't be used" in said
    assert "hunter2" not in said
    assert "must look like" in lite.gpucoord("move-database", "mysql://u:hunter2@h/x", fails=True)
