"""Uses finished token files: opens, loads, indexes, summarizes and plots them.

In: `train.bin`, `val.bin` or shards in any layout. Out: arrays, batches, documents and their index, a summary, a plot.
May import `output` (files, layouts, the manifest) and the rooms below it; `pipeline` never imports it.
"""
