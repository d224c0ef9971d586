"""Which points are run, and in which order: generators that yield points and are sent answers."""
