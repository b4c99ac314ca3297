# /// script
# requires-python = ">=3.10"
# dependencies = ["tiktoken", "numpy", "psutil", "gigatoken", "orjson", "pyarrow"]
# ///
"""Turn text into nanoGPT's train.bin and val.bin, beside this script.

    python prepare.py                       use train_fineweb.txt, or parquet, jsonl or text beside this script
    python prepare.py corpus.jsonl more/    use these files and folders
    python prepare.py --demo                try it on text that comes with Python
    python prepare.py --help                everything else

Then, in nanoGPT: python train.py --dataset=fineweb
"""

import sys
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 (nothing checks it for a copied folder)
    sys.exit("prepare.py needs Python 3.10 or newer, this is " + sys.version.split()[0])

folder = Path(__file__).resolve().parent
sys.path.append(str(folder))  # `python -P` and `-I` leave it out

try:
    from fineweb_stream.cli import run

    if __name__ == "__main__":
        run(folder=folder)
except KeyboardInterrupt:
    sys.exit(130)
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] != "fineweb_stream":
        raise
    sys.exit(f"prepare.py: {error.name} is missing: copy the whole folder fineweb_stream/ to beside this script")
