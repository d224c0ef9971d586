"""Builders of models and of their inputs, by library."""
