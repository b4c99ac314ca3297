"""What every room needs: errors, the token that ends waiting, the logger, sizes, and records that all hand on.

In: what people type, names and texts of others, the system's signals. Out: numbers, messages that may be shown, `Input`
and `Change`. Imports nothing of the package.
"""
