"""Pages of the jobs: what people see of the queue, a job, shares, windows and the mode."""
