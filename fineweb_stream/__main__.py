"""`python -m fineweb_stream`: the command line, with the current folder in place of the script's.

`python -m fineweb_stream inspect FILE_OR_FOLDER` and `decode FILE` show what a run made; `index` writes where documents
end. (Write an input of such a name as `./inspect`.)
"""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] in (["inspect"], ["decode"], ["index"]):
        from .token_files.commands import main

        try:
            sys.exit(main(sys.argv[1:]))
        except ModuleNotFoundError as error:
            sys.exit(f"{error.name} is not installed\n  pip install {error.name}")
    from .cli import run

    run()
