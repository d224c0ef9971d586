"""Arithmetic on a point before anything runs. Pure."""
