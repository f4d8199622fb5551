"""`gpucoord models [boot|unload MODEL]`: list language models, start and unload them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpucoord_site.cli import connection, tables

if TYPE_CHECKING:
    from gpucoord_site.cli.client import Client

Json = dict[str, Any]
HEADS = ("MODEL", "STATE", "INSTANCES", "IN FLIGHT", "REQUESTS 24H", "FIRST TOKEN")


def main(argv: Sequence[str]) -> int:
    options = parser().parse_args(argv)
    if (options.action is None) != (options.model is None):
        connection.complain("Write boot MODEL or unload MODEL, or nothing to list the models.")
        return 2

    def question(client: Client) -> Json:
        if options.action is None:
            return client.models()
        return client.change_model(options.model, options.action)

    return connection.tell(options, question, lines)


def lines(answer: Json) -> Iterator[str]:
    """Of all models, or of the one that was started or unloaded."""
    models = answer.get("models", [answer] if "name" in answer else [])
    if not models:
        yield "No model services yet. Operators add them."
        return
    yield from tables.table(HEADS, [_row(model) for model in models])
    if answer.get("endpoint_problem"):
        yield answer["endpoint_problem"]
    elif answer.get("base_url"):
        yield f"Endpoint: {answer['base_url']}"


def _row(model: Json) -> tuple[str, ...]:
    instances = [
        f"{instance['state']} on {_places(instance)}"
        if instance["started_boot"]
        else "waits for a GPU"
        for instance in model["instances"]
    ]
    first_s = model["use"]["first_token_s"]
    return (
        model["name"],
        model["state"],
        ", ".join(instances) or "none",
        str(sum(instance["in_flight"] for instance in model["instances"])),
        str(model["use"]["requests"]),
        "-" if first_s is None else f"{first_s:.2f} s",
    )


def _places(instance: Json) -> str:
    gpus = ", ".join(f"GPU {number}" for number in instance["gpus"])
    return gpus or "the CPU"


def parser() -> ArgumentParser:
    made = connection.parser("models", "List language models; operators start and unload them.")
    made.add_argument("action", nargs="?", choices=("boot", "unload"), help="operators only")
    made.add_argument("model", nargs="?", metavar="MODEL", help="the name of the model")
    return made


PARSERS = {"models": parser}
