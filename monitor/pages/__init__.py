"""Pages of the GPUs: what people see of readings, history, incidents and events."""
