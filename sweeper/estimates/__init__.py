"""Estimates of a point's memory before anything runs. Pure."""
