"""The code that is measured. Each workload is a module with `prepare` (what to import before the baseline) and `run`."""
