"""What fits: the edge between points that fit and points that do not. Pure."""
