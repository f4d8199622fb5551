"""Imitates data preparation: uses no GPU, prints lines, now and then one on stderr."""

from __future__ import annotations

import sys
import time
from pathlib import Path

SHARDS = 480


def main() -> None:
    corpus = Path(sys.argv[1] if len(sys.argv) > 1 else "corpus")
    shards = int(sys.argv[2]) if len(sys.argv) > 2 else SHARDS
    print(f"{corpus}: {shards} shards; simulated: nothing is read", flush=True)
    for shard in range(shards):
        print(f"shard {shard:03} of {shards}  {1.02 + shard % 7 / 100:.2f} M tokens", flush=True)
        if shard % 40 == 13:
            print(f"warning: shard {shard:03} has empty lines", file=sys.stderr, flush=True)
        time.sleep(3)


if __name__ == "__main__":
    main()
