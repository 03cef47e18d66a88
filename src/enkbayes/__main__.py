"""`python -m enkbayes` is the command `enkbayes`."""

from enkbayes.cli import main

if __name__ == "__main__":
    main()
