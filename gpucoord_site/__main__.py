from __future__ import annotations

import sys

from gpucoord_site.cli import main

sys.exit(main())
