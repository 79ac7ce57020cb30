"""The program `weft`. `app.py` holds the table of commands; each command is one file beside it."""

from weft.cli.app import main as main
