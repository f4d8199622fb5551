"""Texts of enforcement steps: done, dry run, announced and undone."""

from __future__ import annotations

from monitor.incidents.enforcement.policy import Step

TITLES = {
    Step.WARN: "Warning",
    Step.WARN_AGAIN: "Second warning",
    Step.RENICE: "Lower priority",
    Step.LIMIT: "CPU and memory limit",
    Step.FREEZE: "Duty cycle (stop and continue)",
    Step.TERMINATE: "Terminate",
    Step.KILL: "Kill",
}
DID = {
    Step.WARN: "Sent a warning to the owner of {}",
    Step.WARN_AGAIN: "Sent a second warning to the owner of {}",
    Step.RENICE: "Lowered the priority of {}",
    Step.LIMIT: "Limited the CPU and memory of {}",
    Step.FREEZE: "Started to stop and continue {} in turns",
    Step.TERMINATE: "Sent SIGTERM to {}",
    Step.KILL: "Killed {}",
}
WOULD = {
    Step.WARN: "Would warn the owner of {}",
    Step.WARN_AGAIN: "Would warn the owner of {} again",
    Step.RENICE: "Would lower the priority of {}",
    Step.LIMIT: "Would limit the CPU and memory of {}",
    Step.FREEZE: "Would stop and continue {} in turns",
    Step.TERMINATE: "Would send SIGTERM to {}",
    Step.KILL: "Would kill {}",
}
UNDID = {
    Step.RENICE: "Restored the priority of {}",
    Step.LIMIT: "Lifted the limits of {}",
    Step.FREEZE: "Resumed {}",
}
TO_COME = {
    Step.RENICE: "lower its priority",
    Step.LIMIT: "limit its CPU and memory",
    Step.FREEZE: "stop it for part of the time",
    Step.TERMINATE: "terminate it (SIGTERM)",
    Step.KILL: "kill it (SIGKILL)",
}


def process(program: str, pid: int | None, user: str, gpu_index: int | None) -> str:
    """python (PID 12345, alice) on GPU 2."""
    where = "" if gpu_index is None else f" on GPU {gpu_index}"
    owner = f", {user}" if user else ""
    return f"{program or 'process'} (PID {pid}{owner}){where}"
