"""How much memory there is, how much is used, and what to do when it gets short.

In: a budget as it is typed, what the system and its control groups say. Out: limits, CPUs and file sizes that are
allowed, and the step to take. May import `support` alone; `guard` is the only user of psutil.
"""
