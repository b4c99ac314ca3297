"""Reading over a network: names on the Hub, byte ranges of remote files, retries.

In: URLs. Out: lists of files, and bytes. May import only `support`.
"""
