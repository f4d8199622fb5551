"""Facts: what a job writes to its result file."""

from __future__ import annotations

import json
from typing import Any

from monitor.facts.input_rules import is_storable

LARGEST_RESULT = 64 * 1024


def read_result(text: bytes) -> dict[str, Any] | None:
    """{"output": …} or {"problem": …}; None: the file is missing or empty."""
    if not text.strip():
        return None
    if len(text) > LARGEST_RESULT:
        return {"problem": f"The result file is larger than {LARGEST_RESULT // 1024} KiB."}
    try:
        output = json.loads(text, parse_constant=_refuse)
        stored = json.dumps(output, ensure_ascii=False)
    except (ValueError, RecursionError):
        return {"problem": "The result file is no JSON."}
    if "\\u0000" in stored or not is_storable(stored):
        return {"problem": "The result file has characters that can't be stored."}
    return {"output": output}


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
