"""PDF and PNG by typst: data as JSON beside a checked-in template, never markup made of texts."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_name("report.typ")
# A user name of 32 characters and a UUID of a GPU are not cut.
_LONG_WORD = re.compile(r"(\S{43})\S{2,}")
PIXELS_PER_INCH = 144
HOW_TO_GET = "PDF needs typst. Where gpucoord is installed, run: pip install 'gpucoord[pdf]'"


class NoTypst(Exception):
    """The extra `pdf` is not installed; the text says how to get it."""


def is_available() -> bool:
    return find_spec("typst") is not None


def _with_short_words(value: Any) -> Any:
    """All texts without words that are wider than a column; pictures stay as they are."""
    if isinstance(value, str):
        return value if value.startswith("<svg") else _LONG_WORD.sub(r"\1…", value)
    if isinstance(value, list | tuple):
        return [_with_short_words(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_short_words(item) for key, item in value.items()}
    return value


def png(svg: str, width_pt: int) -> bytes:
    """The picture at two pixels for each point, for programs that show no SVG."""
    try:
        import typst
    except ImportError:
        raise NoTypst(HOW_TO_GET) from None
    page = (
        "#set page(width: auto, height: auto, margin: 0pt)\n"
        f"#image(bytes(sys.inputs.svg), width: {width_pt}pt)"
    )
    return bytes(
        typst.compile(page.encode(), sys_inputs={"svg": svg}, format="png", ppi=PIXELS_PER_INCH)
    )


def document(data: dict[str, Any]) -> bytes:
    """The PDF of this data; its fields are those that the template reads."""
    try:
        import typst
    except ImportError:
        raise NoTypst(HOW_TO_GET) from None
    report = json.dumps(_with_short_words(data))
    return bytes(typst.compile(TEMPLATE.read_bytes(), sys_inputs={"report": report}))
