"""The rules of incidents by name, and the words for them."""

from __future__ import annotations

SUSTAINED, FAIR_SHARE, MEMORY_HOG = "sustained", "fair_share", "memory_hog"
LEAK, IDLE_HELD, ORPHANED = "leak", "idle_held", "orphaned"
CLAIMED_EMPTY, UNCLAIMED, UNUSED_GPUS = "claimed_empty", "unclaimed", "unused_gpus"
OVER_MEMORY, EXTRA_GPUS, CPU_HOG = "over_memory", "extra_gpus", "cpu_hog"

# Those that take so much of a GPU that others can hardly use it.
HOG_RULES = (SUSTAINED, FAIR_SHARE, MEMORY_HOG)

# What the rule finds, as a heading; and as a badge beside a process.
TITLES = {
    SUSTAINED: "Sustained high use",
    FAIR_SHARE: "Above the fair share",
    MEMORY_HOG: "Most of a GPU's memory",
    LEAK: "Memory that only grows",
    IDLE_HELD: "Memory held idle",
    ORPHANED: "Orphaned memory",
    CLAIMED_EMPTY: "Booked but empty",
    UNCLAIMED: "Use outside the queue",
    UNUSED_GPUS: "Booked GPUs unused",
    OVER_MEMORY: "More memory than booked",
    EXTRA_GPUS: "More GPUs than booked",
    CPU_HOG: "CPU hog",
}
BADGES = {
    SUSTAINED: "hog",
    FAIR_SHARE: "hog",
    MEMORY_HOG: "memory hog",
    LEAK: "leak",
    IDLE_HELD: "held idle",
    ORPHANED: "orphaned",
    CLAIMED_EMPTY: "booked, empty",
    UNCLAIMED: "outside the queue",
    UNUSED_GPUS: "GPUs unused",
    OVER_MEMORY: "over its memory",
    EXTRA_GPUS: "extra GPU",
    CPU_HOG: "CPU hog",
}

# Those about processes outside of jobs: nothing is done to a job, or where nobody is accused.
ENFORCEABLE = (*HOG_RULES, IDLE_HELD, LEAK, UNCLAIMED, CPU_HOG)

# Worth knowing, but they take nothing from anybody by themselves.
HARMLESS_RULES = (UNCLAIMED,)
