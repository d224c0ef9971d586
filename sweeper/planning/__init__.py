"""Turns a command line and configuration files into a plan. The only package that imports Hydra."""
