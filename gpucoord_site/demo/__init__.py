"""`gpucoord demo`: a simulated server with people, history and jobs, on a folder thrown away."""

from __future__ import annotations
