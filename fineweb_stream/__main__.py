"""`python -m fineweb_stream`: what `prepare.py` does, with the current folder in place of the script's."""

if __name__ == "__main__":
    from .cli import run

    run()
