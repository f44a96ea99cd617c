"""Fault campaigns: real processes, one real file, real `kill -9`. What they check is the product's promise.

`make campaign` runs them in full; `tests/campaign` runs the same code with smaller numbers. The moments of the kills
come from a seed, which is printed; the operating system still has its own say, so a seed repeats a plan, not a run.
A campaign that fails prints its transcript.
"""
