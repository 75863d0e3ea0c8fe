"""What was verified for each architecture, and the page that says it: docs/verified-models.md.

`python -m tools.verified` measures every row, keeps the figures in `benchmarks/results/` and writes the page. It takes
about ten minutes on 2 cores.
"""
