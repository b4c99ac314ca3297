"""Writes ids to shards, `train.bin` and `val.bin`, with a record of where a run stands.

In: the ids of one block after the other. Out: complete, durable files; `files` changes them, no other module. May
import `tokenizer` and `support`; never `inputs`.
"""
