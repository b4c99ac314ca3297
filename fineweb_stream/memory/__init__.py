"""How much memory there is, how much is used, and what to do when it gets short.

In: a budget. Out: steps to take. May import `support` alone; `guard` is the only user of psutil.
"""
