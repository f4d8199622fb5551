"""Facts: which model a name means. Every door asks here: endpoint, prompts, REST, pages.

A name means the service with exactly this name, else the one that has it as an alias, else the only
one whose name or alias differs from it in upper case or in the tag `:latest`, as tools write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

LATEST = ":latest"


def normal(name: str) -> str:
    return name.casefold().removesuffix(LATEST)


class ModelNames:
    """The names of all services, each with its aliases."""

    def __init__(self, aliases_of: Mapping[str, Iterable[str]]) -> None:
        self._exact: dict[str, str] = {}
        similar: dict[str, set[str]] = {}
        for service, aliases in aliases_of.items():
            for each in (service, *aliases):
                self._exact.setdefault(each, service)
                similar.setdefault(normal(each), set()).add(service)
        # The name of a service comes before an alias of another one.
        self._exact |= {name: name for name in aliases_of}
        self._similar = {key: min(names) for key, names in similar.items() if len(names) == 1}

    def find(self, name: str) -> str | None:
        """The service's name; None: no service, or more than one, has this name."""
        return self._exact.get(name) or self._similar.get(normal(name))

    def all(self) -> list[str]:
        """Names and aliases, in order."""
        return sorted(self._exact)
