"""From typed words and configuration files to a plan. The only package that knows Hydra."""
