from __future__ import annotations

import sys

from gpucoord_site.cli.main import main

sys.exit(main())
