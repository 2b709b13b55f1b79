"""`python -m loracle`."""

from loracle.cli.app import main

if __name__ == "__main__":
    main()
