"""`python -m loop` and the `loop` command."""

from loop.cli import main

if __name__ == "__main__":
    main()
