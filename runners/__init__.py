"""Measures one point: starts it in a process of its own, watches it, and decides how it ended.

Only the standard library, except in files whose names contain torch or another library. Never imports `sweeper`.
"""
