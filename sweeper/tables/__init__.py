"""A run's journals as Parquet tables, and back as data frames."""
