"""`python -m paceline`: the same as the command `paceline`. Next file: `cli/main.py`."""

from paceline.cli.main import main

if __name__ == "__main__":
    main()
