"""`python -m fineweb_stream`: the command line, with the current folder in the place of the script's.

`python -m fineweb_stream inspect FILE_OR_FOLDER` and `decode FILE` look at what came out, `index` says where documents
end. (An input of such a name is written `./inspect`.)
"""

import sys

if __name__ == "__main__":
    if sys.argv[1:2] in (["inspect"], ["decode"], ["index"]):
        from .token_files.commands import main

        sys.exit(main(sys.argv[1:]))
    from .cli import run

    run()
