"""The effect of single steps of a dimension on each counter. Pure."""
