"""Journals of a run as Parquet tables, and tables as data frames."""
