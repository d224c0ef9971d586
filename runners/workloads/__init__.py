"""The code that is measured: each workload says what to `import`, what to `prepare`, and `run`s."""
