"""Shared by all rooms: errors, cancellation, the logger, sizes, redaction, quoting, CPUs, and the data of all stages.

In: text that people type, untrusted names and text, signals, control groups. Out: numbers, messages that are safe to
show, `Input` and `Change`. Imports nothing from the rest of the package.
"""
