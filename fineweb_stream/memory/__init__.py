"""How much memory there is, how much is in use, and what to do when it runs short.

In: a budget as it is typed, and what the system and its control groups report. Out: limits on memory, and the step to
take. May import only `support`; only `guard` uses psutil.
"""
