"""Everything a person reads: text, pictures and JSON."""
