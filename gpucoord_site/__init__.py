"""Wiring: settings, addresses, processes. Imports everything, decides nothing."""

from __future__ import annotations

__version__ = "0.1.0"
