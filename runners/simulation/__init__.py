"""A card that is not there: the workload traced without data, then replayed on an imitated allocator."""
