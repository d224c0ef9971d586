"""The edge between points that fit and points that do not. Pure."""
