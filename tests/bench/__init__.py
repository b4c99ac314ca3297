"""How fast: one command, one table. See README.md here."""
