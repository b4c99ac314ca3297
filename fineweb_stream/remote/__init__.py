"""Bytes behind a network: the Hub's names, ranges of any file, patience with servers.

In: URLs. Out: lists of files, and bytes. May import `support` alone.
"""
