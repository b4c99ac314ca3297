"""What came out: open token files, sum them up, draw them.

In: `train.bin`, `val.bin` or shards of any layout. Out: arrays, a summary, a picture. May import `output` (layouts, the
manifest) and what is below it; a run never imports it.
"""
