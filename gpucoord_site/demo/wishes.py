"""What the demo's people want right now: jobs that run at once, and jobs that must wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    owner: str
    name: str
    command: str
    gpus: int = 1
    gib: int | None = None
    exclusive: bool = False
    priority: int = 3
    minutes: int = 20
    waited_s: float = 2
    preemptible: bool = False


WISHES = (
    Wish(
        owner="alice",
        name="pretrain gpt2-xl",
        command="python3 train.py --model gpt2-xl --lr 2e-4 --minutes 25",
        gib=64,
        minutes=25,
        preemptible=True,
    ),
    Wish(
        owner="bob",
        name="distil whisper",
        command="python3 train.py --model whisper-small --minutes 6",
        gib=40,
        minutes=6,
    ),
    Wish(
        owner="erin",
        name="embed papers",
        command="python3 train.py --model bge-large --minutes 12",
        gib=12,
        minutes=12,
        preemptible=True,
    ),
    Wish(
        owner="charlie",
        name="prepare corpus",
        command="python3 prepare.py corpora/news-2026",
        gpus=0,
        minutes=30,
    ),
    Wish(
        owner="dana",
        name="finetune llama-70b",
        command="python3 train.py --model llama-70b --lr 1e-5 --minutes 30",
        gpus=4,
        gib=70,
        priority=2,
        minutes=30,
        waited_s=41 * 60,
    ),
    Wish(
        owner="frank",
        name="benchmark alone",
        command="python3 train.py --model resnet50 --minutes 4",
        exclusive=True,
        priority=2,
        minutes=4,
        waited_s=18 * 60,
    ),
    Wish(
        owner="bob",
        name="gpt2 baseline, seed 2",
        command="python3 train.py --model gpt2-medium --minutes 5",
        gib=60,
        priority=2,
        minutes=5,
        waited_s=9 * 60,
    ),
    Wish(
        owner="alice",
        name="nightly evaluation",
        command="python3 train.py --model eval-suite --minutes 8",
        gib=32,
        priority=1,
        minutes=8,
        preemptible=True,
        waited_s=55 * 60,
    ),
)
