"""Edge: when a job with a capped share may run, and when it pauses."""

from __future__ import annotations


class Duty:
    """Periods of which the job runs the first part. `caps` is false when it may run all the time.

    What it had given the GPU before a pause is still worked on, so the period must not be much
    shorter than one of its steps.
    """

    def __init__(self, share_pct: int | None, period_s: float) -> None:
        self._share = (share_pct or 100) / 100
        self._period_s = max(0.05, period_s)
        self._began: float | None = None
        self.caps = share_pct is not None and 0 < share_pct < 100
        self.pausing = False

    def at(self, now: float) -> tuple[bool, float]:
        """(whether it pauses at this instant, until when)."""
        if self._began is None:
            self._began = now
        turn, into = divmod(now - self._began, self._period_s)
        starts = self._began + turn * self._period_s
        runs_for = self._share * self._period_s
        if into < runs_for:
            return False, starts + runs_for
        return True, starts + self._period_s
