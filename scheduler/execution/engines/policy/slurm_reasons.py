"""Policy: the tier of Slurm's reasons to wait. The words stay those of Slurm."""

from __future__ import annotations

from scheduler.facts.blockers import Tier

# Beginnings of Slurm's reasons (job_reason_codes), the first that fits counts.
_TIERS: tuple[tuple[Tier, tuple[str, ...]], ...] = (
    (
        Tier.PERSON,
        (
            "JobHeld",
            "JobHoldMaxRequeue",
            "launch failed",
            "launch_failed",
            "job requeued in held state",
            "InvalidAccount",
            "InvalidQOS",
            "BadConstraints",
            "DependencyNeverSatisfied",
            "PartitionNodeLimit",
            "PartitionTimeLimit",
            "QOSNotAllowed",
            "QOSTimeLimit",
            "AccountNotAllowed",
            "AccountingPolicy",
            "FailedLaunch",
            "JobLaunchFailure",
        ),
    ),
    (
        Tier.NOT_YET,
        (
            "BeginTime",
            "Dependency",
            "JobArrayTaskLimit",
            "Cleaning",
            "DeadLine",
            "Reservation",
            "Prolog",
            "SchedDefer",
        ),
    ),
    (Tier.MY_LIMITS, ("QOS", "Assoc", "MaxJobs", "MaxMemPerLimit")),
    (
        Tier.MACHINE,
        (
            "NodeDown",
            "ReqNodeNotAvail",
            "Nodes required for job are DOWN",
            "NodesRequired",
            "PartitionDown",
            "PartitionInactive",
            "FrontEndDown",
            "Licenses",
            "BurstBuffer",
            "SystemFailure",
            "PartitionConfig",
            "NoneAvailable",
        ),
    ),
)
# Other users' jobs, or the order of the queue; also a reason that is new to us.
_OTHERS = Tier.CONTENTION


def is_held(reason: str) -> bool:
    """Whether Slurm does not start the task until it is released."""
    return reason.startswith("JobHeld")


def tier_of(reason: str) -> Tier:
    """The tier of a reason. A reason that is not listed is taken for contention."""
    for tier, beginnings in _TIERS:
        if reason.startswith(beginnings):
            return tier
    return _OTHERS


_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Communication connection failure",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "Transport endpoint is not connected",
    "Protocol authentication error",
    "Munge encode failed",
    "Insane message length",
    "No route to host",
    "Resource temporarily unavailable",
    "Unable to establish controller machine",
    "Unexpected message received",
    "Message receive failure",
    "Message send failure",
    "DNS SRV lookup failed",
    "Could not establish a configuration source",
)


def is_away(text: str) -> bool:
    """Whether an error says that slurmctld or munge does not answer, not that it refuses."""
    return any(words in text for words in _AWAY)


def is_gone(text: str) -> bool:
    """Whether slurmctld answered that it has no such job."""
    return "Invalid job id specified" in text


def is_over(text: str) -> bool:
    """Whether slurmctld answered that the job has ended."""
    return "already completing or completed" in text or is_gone(text)
