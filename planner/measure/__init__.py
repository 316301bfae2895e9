"""Measuring candidates in worker processes: clocks, the race, the jobs of a worker, and the pool that survives them."""
