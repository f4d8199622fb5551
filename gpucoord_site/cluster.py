"""The task process: the django-q2 cluster whose workers run the loops."""

from __future__ import annotations

import gc


def run_cluster() -> int:
    """Run until SIGTERM; returns the exit code, not 0 when its sentinel died."""
    from django_q.cluster import Cluster

    from gpucoord_site import loops

    loops.preload()
    gc.freeze()
    cluster = Cluster()
    cluster.start()
    cluster.sentinel.join()
    return 1 if cluster.sentinel.exitcode else 0
