"""GPT-2's vocabulary, the engines that encode, and where a text may be cut.

In: texts. Out: ids (uint16). May import `support` alone.
"""
