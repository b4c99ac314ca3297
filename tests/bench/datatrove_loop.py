"""datatrove's DocumentTokenizer with two workers; run by a Python that has datatrove.

    python datatrove_loop.py FOLDER_OF_PARQUET TOKENIZER_JSON OUT

It parts its work by files: the folder has two. Documents are not shuffled (its default is to shuffle them, with a
second pass over all ids), since nobody else here shuffles either.
"""

import json
import sys
from importlib.metadata import version


def main(folder: str, tokenizer: str, out: str) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenize = DocumentTokenizer(f"{out}/ids", tokenizer, eos_token="<|endoftext|>", shuffle_documents=False)
    LocalPipelineExecutor([ParquetReader(folder), tokenize], tasks=2, workers=2, logging_dir=f"{out}/logs").run()


if __name__ == "__main__":
    main(*sys.argv[1:])
    print(json.dumps({"datatrove": version("datatrove"), "tokenizers": version("tokenizers")}))
