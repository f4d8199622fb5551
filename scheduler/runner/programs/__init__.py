"""Programs of the shipped scripts. They run as jobs, without Django."""
