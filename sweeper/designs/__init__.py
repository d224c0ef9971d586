"""Which points are asked for, and in which order: generators that yield points and are sent answers."""
