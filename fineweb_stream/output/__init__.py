"""Ids -> shards -> `train.bin` and `val.bin`, with a manifest that says where a run stands.

In: ids of one block after the other. Out: complete, durable files; `files` is the only module that changes the disk.
May import `memory`, `tokenizer` and `support`; never `inputs`.
"""
