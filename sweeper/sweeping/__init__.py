"""Runs a plan: the loop over its points, and the recall of settled attempts."""
