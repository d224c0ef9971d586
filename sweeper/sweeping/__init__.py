"""The loop over a plan's points, and the recall of attempts that are already settled."""
