"""Two runs, point by point: which points are the same, and what changed in them. Pure."""
