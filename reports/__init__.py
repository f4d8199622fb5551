"""Reports on use, waste and waits, and capacity planning."""

from __future__ import annotations
