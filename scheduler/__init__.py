"""Who gets which GPU next, and why not."""

from __future__ import annotations
