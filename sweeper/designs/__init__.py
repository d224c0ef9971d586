"""Designs decide which points run, and in which order: generators that yield points and receive answers."""
