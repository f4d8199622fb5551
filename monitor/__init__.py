"""Processes on the GPUs, and their owners."""

from __future__ import annotations
