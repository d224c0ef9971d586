"""What one step of one dimension does to each counter. Pure."""
