"""What came out: open token files, sum them up, draw them.

In: `train.bin`, `val.bin` or shards of any layout. Out: arrays, batches, documents and their index, a summary, a
picture. May import `output` (files, layouts, the manifest) and what is below it; `pipeline` never imports it.
"""
