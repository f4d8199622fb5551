"""Decides which job gets which GPU next, and says why others wait."""

from __future__ import annotations
