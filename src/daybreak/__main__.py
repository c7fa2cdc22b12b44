"""``python -m daybreak``: the same as the command ``daybreak``."""

from daybreak.cli import main

if __name__ == "__main__":
    main()
