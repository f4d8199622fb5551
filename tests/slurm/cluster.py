"""A whole Slurm on loopback, as ordinary processes: munge, slurmctld and two nodes with two fake
GPUs each. It has a folder, ports and accounts of its own and leaves /etc/slurm alone."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep

from tests.pace import Stopwatch

NODES = ("n1", "n2")
# Each worker of pytest has a cluster of its own, with accounts of its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST, SECOND = (f"gpucoord-t{_WORKER}{letter}" for letter in "ab")
ACCOUNTS = {FIRST: 61200 + 2 * _WORKER, SECOND: 61201 + 2 * _WORKER}
# As sinfo abbreviates them; a node that does not answer has "*" behind its state.
READY = frozenset({"idle", "mix", "alloc", "comp"})
RESUME_EVERY_S = 3.0
# A job that is put back into the queue waits until the credential of its first start has expired:
# cred_expire, 120 s as Slurm is shipped. slurmctld asks the nodes every third of SlurmdTimeout, so
# that is how long a node may be unknown after a restart.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/sock,cred_expire=15
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdTimeout=30
SlurmctldTimeout=10
KillWait=5
MinJobAge=60
MessageTimeout=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=4000"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Start it with `start`, and end it with `stop`; the accounts are removed with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._made: list[str] = []

    def start(self) -> Cluster:
        for name, uid in ACCOUNTS.items():
            self._make_account(name, uid)
        self.folder.chmod(0o755)
        (self.folder / "munge").mkdir(mode=0o755)
        for name in ("state", "homes"):
            (self.folder / name).mkdir(exist_ok=True, mode=0o755)
        self._write_conf()
        self.start_first()
        self.start_part("slurmctld")
        for node in NODES:
            self.start_part(node)
        self.wait_until_up()
        return self

    def _make_account(self, name: str, uid: int) -> None:
        try:
            pwd.getpwnam(name)
        except KeyError:
            home = self.folder / "homes" / name
            home.parent.mkdir(exist_ok=True, mode=0o755)
            command = ["useradd", "-m", "-d", str(home), "-u", str(uid), "-s", "/bin/sh", name]
            subprocess.run(command, check=True, capture_output=True)
            self._made.append(name)

    def start_first(self) -> None:
        """Start the programs that slurmctld needs."""
        self._start_munge()

    def conf_text(self) -> str:
        host = socket.gethostname().split(".")[0]
        text = CONF.format(host=host, folder=self.folder, port=free_port())
        for node in NODES:
            text += NODE.format(name=node, host=host, port=free_port()) + " Gres=gpu:2\n"
        return text

    def _write_conf(self) -> None:
        self.conf.write_text(self.conf_text())
        gres = f"NodeName={','.join(NODES)} Name=gpu File=/dev/tty[0-1]\n"
        (self.folder / "gres.conf").write_text(gres)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        options = {
            "--key-file": key,
            "--socket": self.folder / "munge/sock",
            "--pid-file": self.folder / "munge/pid",
            "--log-file": self.folder / "munge.log",
            "--seed-file": self.folder / "munge.seed",
        }
        words = [f"{name}={path}" for name, path in options.items()]
        self._processes["munged"] = subprocess.Popen(
            ["munged", "--force", "--foreground", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait_for(lambda: (self.folder / "munge/sock").exists(), 10, "munge")

    def start_part(self, name: str, *options: str) -> None:
        """slurmctld, or the slurmd of a node."""
        words = ["slurmctld"] if name == "slurmctld" else ["slurmd", "-N", name]
        self.start_program(name, *words, "-D", "-f", str(self.conf), *options)

    def start_program(self, name: str, *words: str) -> None:
        """A program that ends with the cluster."""
        self._processes[name] = subprocess.Popen(
            words,
            env=self.env,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def kill_part(self, name: str) -> None:
        """SIGKILL to this one process; the jobs' own processes live on."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def signal_part(self, name: str, number: int) -> None:
        """SIGSTOP lets it hang, SIGCONT lets it answer again."""
        self._processes[name].send_signal(number)

    @property
    def env(self) -> Mapping[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "SLURM_CONF": str(self.conf), "LC_ALL": "C.UTF-8"}

    def run(self, *words: str, uid: int | None = None) -> str:
        """The output of a command of Slurm, as root or as this account."""
        done = subprocess.run(
            words,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=30,
            cwd="/",
            check=False,
            **({} if uid is None else {"user": uid, "group": uid, "extra_groups": []}),
        )
        return done.stdout + done.stderr

    def wait_until_up(self, seconds: float = 60) -> None:
        """Until both nodes take jobs. Nodes that were drained by a kill are resumed."""
        states: dict[str, str] = {}
        resumed_at = monotonic()

        def is_up() -> bool:
            nonlocal resumed_at
            lines = self.run("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
            pairs = (line.partition(" ") for line in lines)
            states.clear()
            states.update({name: state for name, _, state in pairs if name in NODES})
            if set(states.values()) <= READY and len(states) == len(NODES):
                return True
            if monotonic() - resumed_at > RESUME_EVERY_S:
                resumed_at = monotonic()
                for name in (name for name, state in states.items() if state not in READY):
                    self.run("scontrol", "update", f"nodename={name}", "state=resume")
            return False

        try:
            self.wait_for(is_up, seconds, "two nodes")
        except AssertionError as error:
            raise AssertionError(f"{error}: {states}") from None

    @staticmethod
    def wait_for(poll: Callable[[], object], seconds: float, purpose: str) -> None:
        watch = Stopwatch()
        while not poll():
            assert not watch.has_run(seconds), f"not within {seconds:g} s: {purpose}"
            sleep(0.1)

    def cancel_all(self) -> None:
        """End all jobs, and wait until they have left the nodes."""
        for name in ACCOUNTS:
            self.run("scancel", "--user", name)
        states = "pending,running,completing"
        self.wait_for(lambda: not self.run("squeue", "-h", "-t", states).strip(), 30, "no jobs")

    def stop(self) -> None:
        for name in ACCOUNTS:
            self.run("scancel", "--user", name)
        for process in reversed(list(self._processes.values())):
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_jobs()
        for name in self._made:
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_jobs(self) -> None:
        """Processes of jobs have the uids of the test's accounts, or are their slurmstepd."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (
                    entry.stat().st_uid in ACCOUNTS.values() or self._is_step_daemon(entry)
                ):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def _is_step_daemon(self, process: Path) -> bool:
        """Whether it is a slurmstepd of this cluster, by the files that it has open."""
        if (process / "comm").read_text().strip() != "slurmstepd":
            return False
        opened = [os.readlink(descriptor) for descriptor in (process / "fd").iterdir()]
        return any(name.startswith(f"{self.folder}/") for name in opened)
