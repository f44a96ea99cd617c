"""The pure core: decisions as values. No socket, file, clock, randomness, task or log; stdlib and core only."""
