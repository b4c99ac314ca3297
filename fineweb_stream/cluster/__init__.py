"""Encodes on other machines: Dask's executor under the same ordered window as local threads.

In: blocks and the function that encodes one. Out: each block with its ids, in order. May import everything below it
(`pipeline` and its rooms); imported by `api` alone, `client` only for `--cluster`: it needs the extra `cluster`.
"""
