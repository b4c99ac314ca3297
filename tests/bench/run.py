"""Measure everything in one run and print one table.

python tests/bench/run.py                                      on text that comes with Python, varied to 500 MB
python tests/bench/run.py --corpus FILE                        on your own parquet, jsonl or txt
python tests/bench/run.py --corpus FILE --mb 100 --only 'prepare-parquet-*' loop-plain
python tests/bench/run.py --list                               the cases and what they are
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tests.bench.main import main

    sys.exit(main())
