#!/usr/bin/env python
"""Django's command line in a checkout: the same as the installed `gpucoord`."""

from __future__ import annotations

import sys

from gpucoord_site.cli.main import manage

if __name__ == "__main__":
    sys.exit(manage())
