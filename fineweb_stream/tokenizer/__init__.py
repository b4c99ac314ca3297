"""GPT-2's vocabulary, the engines that encode, and where a text may be cut.

In: a tokenizer's name or file; texts, as one buffer of UTF-8 and where each ends. Out: their ids (uint16, uint32 above
65,536 ids) and where each ends, and the places where a text may be cut. May import `support` alone.
"""
