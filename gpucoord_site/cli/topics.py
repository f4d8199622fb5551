"""`gpucoord help TOPIC`: a chapter of the documentation, as the pages below /docs/ show it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePosixPath

TOPICS = "topics"


def main(argv: Sequence[str]) -> int:
    """Print the chapter of the words, such as `first job`. Returns 2 if there is none."""
    from gpucoord_site.documentation import library

    topic = "-".join(argv)
    if topic == TOPICS:
        sys.stdout.write("\n".join(_list()) + "\n")
        return 0
    try:
        text = library.source(library.find(topic))
    except library.NoChapter:
        names = [PurePosixPath(entry.name).name for entry in library.index()]
        close = get_close_matches(topic, names, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        sys.stderr.write(
            f"gpucoord: there is no command or topic {topic!r}.{hint}"
            " `gpucoord help topics` lists all topics.\n"
        )
        return 2
    sys.stdout.write(text)
    return 0


def is_topic(words: Sequence[str]) -> bool:
    from gpucoord_site.documentation import library

    topic = "-".join(words)
    try:
        library.find(topic)
    except library.NoChapter:
        return topic == TOPICS
    return True


def _list() -> Iterator[str]:
    from gpucoord_site.documentation import library

    group = ""
    for entry in library.index():
        if entry.group != group:
            group = entry.group
            yield f"\n{group}" if group != library.index()[0].group else group
        yield f"  {entry.name:<32}  {entry.title}"
