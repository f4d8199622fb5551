"""What happens on the GPUs, and whose it is."""

from __future__ import annotations
