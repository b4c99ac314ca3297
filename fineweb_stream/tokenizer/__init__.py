"""Tokenizers, the engines that encode, and the rules for where a text may be cut.

In: a tokenizer's name or file; texts as one UTF-8 buffer, with the end offset of each. Out: their ids (uint16, or
uint32 above 65,536 ids), with the end offset of each, and safe places to cut a text. May import `support` only.
"""
