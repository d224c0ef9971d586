"""Knows one point: starts it in a process of its own, watches it, and says how it ended.

Standard library only, except in the files whose names say torch, Ray or a library; never imports `sweeper`.
"""
