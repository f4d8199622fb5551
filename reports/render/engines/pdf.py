"""PDF by typst: the data as JSON beside a checked-in template, never markup made of texts."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_name("report.typ")
HOW_TO_GET = "PDF needs typst: run `pip install 'gpucoord[pdf]'` where gpucoord is installed."


class NoTypst(Exception):
    """The extra `pdf` is not installed; the text says how to get it."""


def is_available() -> bool:
    return find_spec("typst") is not None


def document(data: dict[str, Any]) -> bytes:
    """The PDF of this data; its fields are those that the template reads."""
    try:
        import typst
    except ImportError:
        raise NoTypst(HOW_TO_GET) from None
    return bytes(typst.compile(TEMPLATE.read_bytes(), sys_inputs={"report": json.dumps(data)}))
