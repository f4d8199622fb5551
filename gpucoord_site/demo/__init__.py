"""`gpucoord demo`: a simulated server with users, history and jobs, in a temporary folder."""

from __future__ import annotations
