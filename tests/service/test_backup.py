"""`gpucoord backup` and `restore` on SQLite, and archives that must be refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpucoord_site import __version__
from gpucoord_site.backup import archive, command
from gpucoord_site.backup.archive import BackupError
from gpucoord_site.cli import server as cli
from gpucoord_site.config.settings import Config, load_config
from gpucoord_site.service.startup_checks import UnableToStart, lock_data_folder
from tests.processes.service import Service, token, wait_until


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    for name in list(os.environ):
        if name.startswith("GPUCOORD_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("GPUCOORD_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return load_config()


def fill(config: Config, rows: int = 3) -> None:
    """A data folder with a small database."""
    config.data.mkdir(mode=0o700)
    (config.data / "secret_key").write_text("a secret")
    with closing(sqlite3.connect(config.data / "gpucoord.sqlite3")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE django_migrations (id INTEGER PRIMARY KEY, app, name)")
        database.execute("INSERT INTO django_migrations VALUES (1, 'auth', '0001_initial')")
        database.execute("CREATE TABLE facts (n)")
        database.executemany("INSERT INTO facts VALUES (?)", [(n,) for n in range(rows)])
        database.commit()


def facts(config: Config) -> int:
    with closing(sqlite3.connect(config.data / "gpucoord.sqlite3")) as database:
        return int(database.execute("SELECT count(*) FROM facts").fetchone()[0])


def elsewhere(config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("GPUCOORD_DATA", str(config.data.with_name("other")))
    return load_config()


def test_a_draft_that_another_account_has_planted_is_not_used(
    config: Config, tmp_path: Path
) -> None:
    """In a folder that other accounts can write to, they could read the secret key from it."""
    fill(config)
    file = tmp_path / "b.tar.gz"
    planted = tmp_path / f".{file.name}.{os.getpid()}"
    planted.touch(mode=0o666)
    inode = planted.stat().st_ino

    command.backup(config, file)

    assert file.stat().st_ino != inode
    assert (planted.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"", 0o600)


def test_a_backup_is_readable_by_its_owner_alone_and_put_back_whole(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(config)
    (config.data / "gpucoord.toml").write_text('node = "east"\n')
    file = tmp_path / "b.tar.gz"
    answer = command.backup(config, file)
    other = elsewhere(config, monkeypatch)

    command.restore(other, file)

    assert " B): database.sqlite3, gpucoord.toml, secret_key." in answer
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert facts(other) == 3
    for name, text in (("secret_key", "a secret"), ("gpucoord.toml", 'node = "east"\n')):
        assert (other.data / name).read_text() == text
        assert stat.S_IMODE((other.data / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(other.data.stat().st_mode) == 0o700
    assert sorted(p.name for p in other.data.iterdir()) == [
        "gpucoord.sqlite3", "gpucoord.toml", "run", "secret_key",
    ]  # fmt: skip


def test_a_backup_holds_what_was_committed_while_another_process_writes(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(config)
    with closing(sqlite3.connect(config.data / "gpucoord.sqlite3")) as writer:
        writer.execute("INSERT INTO facts VALUES (99)")
        command.backup(config, tmp_path / "b.tar.gz")
        writer.commit()
    other = elsewhere(config, monkeypatch)

    command.restore(other, tmp_path / "b.tar.gz")

    assert (facts(other), facts(config)) == (3, 4)


def test_existing_data_stay_unless_they_are_to_be_replaced(config: Config, tmp_path: Path) -> None:
    fill(config)
    file = tmp_path / "b.tar.gz"
    command.backup(config, file)
    with closing(sqlite3.connect(config.data / "gpucoord.sqlite3")) as database:
        database.execute("DELETE FROM facts")
        database.commit()

    with pytest.raises(BackupError, match="--replace"):
        command.restore(config, file)
    assert facts(config) == 0
    text = command.restore(config, file, replace=True)

    assert facts(config) == 3
    kept = next(config.data.glob("replaced-*"))
    assert str(kept) in text
    assert {"gpucoord.sqlite3", "secret_key"} <= {p.name for p in kept.iterdir()}


def test_a_settings_file_in_use_is_not_replaced(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(config)
    settings = tmp_path / "own.toml"
    settings.write_text('node = "old"\n')
    monkeypatch.setenv("GPUCOORD_CONFIG", str(settings))
    command.backup(load_config(), tmp_path / "b.tar.gz")
    settings.write_text('node = "new"\n')
    other = elsewhere(config, monkeypatch)

    text = command.restore(other, tmp_path / "b.tar.gz")

    assert settings.read_text() == 'node = "new"\n'
    assert (other.data / "gpucoord.toml.restored").read_text() == 'node = "old"\n'
    assert str(settings) in text


def test_a_running_service_keeps_its_data(config: Config, tmp_path: Path) -> None:
    fill(config)
    command.backup(config, tmp_path / "b.tar.gz")
    lock = lock_data_folder(config.data)
    try:
        with pytest.raises(UnableToStart, match="already runs"):
            command.restore(config, tmp_path / "b.tar.gz", replace=True)
    finally:
        os.close(lock)


def test_a_file_that_exists_is_not_overwritten(config: Config, tmp_path: Path) -> None:
    fill(config)
    (tmp_path / "b.tar.gz").write_text("mine")

    with pytest.raises(BackupError, match="exists"):
        command.backup(config, tmp_path / "b.tar.gz")
    assert (tmp_path / "b.tar.gz").read_text() == "mine"


def test_no_backup_is_made_of_a_damaged_database(config: Config, tmp_path: Path) -> None:
    fill(config, rows=5000)
    database = config.data / "gpucoord.sqlite3"
    with closing(sqlite3.connect(database)) as writer:
        writer.execute("PRAGMA journal_mode=DELETE")
    content = bytearray(database.read_bytes())
    content[8192 : 8192 + 2048] = b"\xff" * 2048
    database.write_bytes(content)

    with pytest.raises(BackupError, match=r"damaged|copied"):
        command.backup(config, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


def test_nothing_stays_of_a_backup_that_fails(config: Config, tmp_path: Path) -> None:
    fill(config)
    (config.data / "secret_key").unlink()
    before = set(tmp_path.iterdir())

    with pytest.raises(BackupError, match="secret_key can't be read"):
        command.backup(config, tmp_path / "b.tar.gz")
    assert set(tmp_path.iterdir()) == before


# Archives that `gpucoord backup` did not write.


def made(
    path: Path,
    contents: Mapping[str, bytes],
    members: list[tarfile.TarInfo] | None = None,
    **facts: Any,
) -> Path:
    """An archive with a true manifest for `contents`, changed by `facts`; then further members."""
    manifest: dict[str, Any] = {
        "format": 1, "gpucoord": __version__, "made_at": "2026-01-01T00:00:00+00:00",
        "node": "n", "database": "sqlite", "migrations": [],
        "files": {
            name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for name, body in contents.items()
        },
    }  # fmt: skip
    with tarfile.open(path, "w:gz") as tar:
        for name, body in {
            "manifest.json": json.dumps(manifest | facts).encode(),
            **contents,
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for member in members or []:
            tar.addfile(member)
    return path


def database_bytes(tmp_path: Path) -> bytes:
    path = tmp_path / "small.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE facts (n)")
    return path.read_bytes()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../secret_key"),
        tarfile.TarInfo("/etc/passwd"),
        tarfile.TarInfo("jobs/1/output.log"),
        link("gpucoord.toml", "/etc/passwd"),
        link("gpucoord.toml", "secret_key", tarfile.LNKTYPE),
        link("gpucoord.toml", "", tarfile.FIFOTYPE),
        link("gpucoord.toml", "", tarfile.DIRTYPE),
        tarfile.TarInfo("secret_key"),
        tarfile.TarInfo("gpucoord.toml"),
    ],
    ids=lambda m: f"{m.name} {m.type!r}",
)
def test_no_other_name_or_kind_of_file_is_taken_from_an_archive(
    config: Config, tmp_path: Path, member: tarfile.TarInfo
) -> None:
    files = {"database.sqlite3": database_bytes(tmp_path), "secret_key": b"key"}

    with pytest.raises(BackupError, match="is no backup of gpucoord"):
        command.restore(config, made(tmp_path / "b.tar.gz", files, [member]))
    assert [p.name for p in config.data.iterdir()] == ["run"]


def test_a_wrong_checksum_is_reported(config: Config, tmp_path: Path) -> None:
    files = {"database.sqlite3": database_bytes(tmp_path), "secret_key": b"key"}
    sums = {name: {"bytes": len(body), "sha256": "0" * 64} for name, body in files.items()}

    with pytest.raises(BackupError, match="checksum"):
        command.restore(config, made(tmp_path / "b.tar.gz", files, files=sums))


def test_a_file_of_another_size_than_promised_is_not_written(
    config: Config, tmp_path: Path
) -> None:
    files = {"database.sqlite3": database_bytes(tmp_path), "secret_key": b"key"}
    sums = {name: {"bytes": 1, "sha256": "0" * 64} for name in files}

    with pytest.raises(BackupError, match="not as expected"):
        command.restore(config, made(tmp_path / "b.tar.gz", files, files=sums))


def test_a_database_larger_than_the_disk_is_not_unpacked(config: Config, tmp_path: Path) -> None:
    huge = tarfile.TarInfo("database.sqlite3")
    huge.size = 2**60
    manifest = {
        "format": 1, "gpucoord": __version__, "made_at": "", "node": "", "database": "sqlite",
        "migrations": [],
        "files": {n: {"bytes": 2**60, "sha256": ""} for n in ("database.sqlite3", "secret_key")},
    }  # fmt: skip
    body = json.dumps(manifest).encode()
    first = tarfile.TarInfo("manifest.json")
    first.size = len(body)
    padded = body + b"\0" * (-len(body) % 512)
    with gzip.open(tmp_path / "b.tar.gz", "wb") as out:
        out.write(first.tobuf() + padded + huge.tobuf() + b"\0" * 1024)

    with pytest.raises(BackupError, match="too large"):
        command.restore(config, tmp_path / "b.tar.gz")


def test_a_header_that_would_fill_the_memory_is_refused(config: Config, tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2**40
    with gzip.open(tmp_path / "b.tar.gz", "wb") as out:
        out.write(header.tobuf(tarfile.USTAR_FORMAT if header.size < 2**33 else tarfile.GNU_FORMAT))
        out.write(b"\0" * 1024)

    with pytest.raises(BackupError, match="header in it is too large"):
        command.restore(config, tmp_path / "b.tar.gz")


@pytest.mark.parametrize(
    "body",
    [b"", b"text", gzip.compress(b"text"), gzip.compress(b"\0" * 10240)],
    # A compressed text carries the time: as a name it would differ between two test workers.
    ids=["empty", "text", "compressed text", "compressed zeros"],
)
def test_a_file_that_is_no_archive_is_named_so(config: Config, tmp_path: Path, body: bytes) -> None:
    (tmp_path / "b.tar.gz").write_bytes(body)

    with pytest.raises(BackupError, match=r"b\.tar\.gz"):
        command.restore(config, tmp_path / "b.tar.gz")


def test_a_manifest_that_is_nested_too_deeply_is_refused(config: Config, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    body = b"[" * 200_000
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(body)
        tar.addfile(member, io.BytesIO(body))

    with pytest.raises(BackupError, match="is no backup of gpucoord: it is nested too deeply"):
        command.restore(config, path)


def test_a_truncated_backup_is_refused(config: Config, tmp_path: Path) -> None:
    fill(config)
    command.backup(config, tmp_path / "b.tar.gz")
    body = (tmp_path / "b.tar.gz").read_bytes()
    (tmp_path / "b.tar.gz").write_bytes(body[: len(body) // 2])

    with pytest.raises(BackupError, match="is no backup"):
        command.restore(config, tmp_path / "b.tar.gz", replace=True)
    assert facts(config) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gpucoord": "99.0.0"}, "of gpucoord 99.0.0, and this is"),
        ({"gpucoord": "latest"}, "which is none"),
        ({"migrations": ["scheduler.0999_future"]}, "newer gpucoord: it has scheduler.0999_future"),
        ({"database": "oracle"}, "unknown kind"),
        ({"format": 2}, "format is of another version"),
    ],
)
def test_a_backup_of_another_version_is_refused_with_a_sentence(
    config: Config, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    files = {"database.sqlite3": database_bytes(tmp_path), "secret_key": b"key"}

    with pytest.raises(BackupError, match=sentence):
        command.restore(config, made(tmp_path / "b.tar.gz", files, **changes))
    assert not (config.data / "gpucoord.sqlite3").exists()


def test_migrations_of_other_apps_do_not_count_as_newer(config: Config, tmp_path: Path) -> None:
    files = {"database.sqlite3": database_bytes(tmp_path), "secret_key": b"key"}
    applied = ["auth.0099_future", "scheduler.0001_initial", "monitor.0001_release_0_1"]

    command.restore(config, made(tmp_path / "b.tar.gz", files, migrations=applied))

    assert (config.data / "secret_key").read_text() == "key"


def test_a_backup_of_postgresql_is_not_put_into_sqlite(config: Config, tmp_path: Path) -> None:
    files = {"database.pgdump": b"PGDMP", "secret_key": b"key"}

    with pytest.raises(BackupError, match="gpucoord move-database"):
        command.restore(config, made(tmp_path / "b.tar.gz", files, database="postgresql"))


def test_a_damaged_database_is_not_put_in_place(config: Config, tmp_path: Path) -> None:
    files = {"database.sqlite3": b"SQLite format 3\0" + b"?" * 4096, "secret_key": b"key"}

    with pytest.raises(BackupError, match="damaged"):
        command.restore(config, made(tmp_path / "b.tar.gz", files))
    assert not (config.data / "gpucoord.sqlite3").exists()


def test_the_commands_print_one_sentence_and_exit_with_1(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.backup([str(tmp_path / "b.tar.gz")]) == 1
    assert "There is no database" in capsys.readouterr().err
    assert cli.restore([str(tmp_path / "absent.tar.gz")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.processes
def test_a_service_with_jobs_is_backed_up_while_it_runs_and_continues_elsewhere(
    tmp_path: Path,
) -> None:
    file = tmp_path / "b.tar.gz"
    with Service(tmp_path / "first") as service:
        with _api(service) as api:
            made_job = api.post("jobs/", json={"command": "echo x", "name": "earlier", "gpus": 0})
            number = made_job.json()["id"]
            wait_until(lambda: api.get(f"jobs/{number}/").json()["outcome"], 20, "the job's end")
        _command(service, "backup", str(file))
        secret = token(service)
    again = Service(tmp_path / "second")
    done = _command(again, "restore", str(file))
    assert "Restored sqlite" in done
    with again:
        # The same key, users and tokens; the token of the first service was made after the backup.
        with _api(again) as api:
            assert api.get(f"jobs/{number}/").json()["name"] == "earlier"
        late = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{again.address}api/jobs/", headers=late).status_code == 401
        refused = subprocess.run(
            [sys.executable, "-m", "gpucoord_site", "restore", str(file), "--replace"],
            env=again._env, capture_output=True, text=True,
        )  # fmt: skip
        assert (refused.returncode, "already runs" in refused.stderr) == (1, True)


def _command(service: Service, *argv: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpucoord_site", *argv],
        env=service._env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _api(service: Service) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token(service)}"}
    return httpx.Client(base_url=f"{service.address}api/", headers=headers, timeout=60)


def test_the_copy_of_a_database_is_one_file(config: Config, tmp_path: Path) -> None:
    fill(config)
    command.dump_sqlite(config.data / "gpucoord.sqlite3", tmp_path / "copy.sqlite3")

    assert [p.name for p in tmp_path.glob("copy*")] == ["copy.sqlite3"]
    assert archive.stored(tmp_path / "copy.sqlite3").bytes > 0
