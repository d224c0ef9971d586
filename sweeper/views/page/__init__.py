"""The page of a run: what it shows (pure), its pictures, and the HTML file."""
