"""A Slurm on loopback with a slurmdbd and a MariaDB of its own."""

from __future__ import annotations

import secrets
import socket
import subprocess
from pathlib import Path

from tests.slurm.cluster import Cluster, free_port

START_S = 60.0
DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=accounting
"""
STORAGE = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge/sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
"""
USER = """\
CREATE DATABASE IF NOT EXISTS accounting;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY '{password}';
GRANT ALL ON accounting.* TO slurm@'127.0.0.1';
"""


class AccountedCluster(Cluster):
    """It counts GPUs as TRES and keeps the ends of jobs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port, self._database_port = free_port(), free_port()
        self._password = secrets.token_hex(16)

    def conf_text(self) -> str:
        storage = STORAGE.format(port=self._port, folder=self.folder)
        return super().conf_text().replace(
            "AccountingStorageType=accounting_storage/none\n", storage
        )  # fmt: skip

    def start_first(self) -> None:
        super().start_first()
        self._start_database()
        self._start_daemon()

    def _start_database(self) -> None:
        data, first = self.folder / "database", self.folder / "first.sql"
        made = ("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root")
        more = ("--skip-test-db", "--force", "--auth-root-authentication-method=normal")
        subprocess.run([*made, *more], check=True, capture_output=True, cwd="/")
        first.write_text(USER.format(password=self._password))
        self.start_program(
            "mariadbd",
            *("mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"),
            *("--bind-address=127.0.0.1", f"--port={self._database_port}", "--skip-name-resolve"),
            *(f"--socket={self.folder}/database.sock", f"--init-file={first}"),
            "--innodb-buffer-pool-size=32M",
        )
        self.wait_for(lambda: _answers(self._database_port), START_S, "MariaDB")

    def _start_daemon(self) -> None:
        conf = self.folder / "slurmdbd.conf"
        conf.touch(mode=0o600)
        host = socket.gethostname().split(".")[0]
        conf.write_text(
            DAEMON.format(
                folder=self.folder, host=host, port=self._port,
                database_port=self._database_port, password=self._password,
            )
        )  # fmt: skip
        self.start_program("slurmdbd", "slurmdbd", "-D")
        self.wait_for(lambda: _answers(self._port), START_S, "slurmdbd")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
