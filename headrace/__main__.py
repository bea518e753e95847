"""``python -m headrace``: the command line."""

from .jobs.cli import main

if __name__ == "__main__":
    main()
