"""Calculated attempts: the workload is traced without data, and the trace is replayed on a simulated allocator."""
