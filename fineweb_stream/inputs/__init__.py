"""Names that the user gives -> sources of blocks -> documents.

In: names of files, folders, globs, URLs. Out: `Block`s, which say where text is, and the `Batch` that each reads there.
May import `remote`, `tokenizer` (where a text may be cut) and `support`; never `output`.
"""
