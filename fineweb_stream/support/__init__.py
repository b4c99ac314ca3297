"""What every room needs: errors, names that may be shown, sizes, waiting, signals.

Imports nothing of the package.
"""
