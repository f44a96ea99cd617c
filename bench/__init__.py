"""Benchmarks, one for each promise with a number. `make bench` runs all; `python -m bench --help` says how to pick.

Nothing here asserts a time. A shared machine is noisy, so contenders run interleaved, in rounds, each in a process of
its own, and what is printed is the median of the rounds with its spread.
"""
