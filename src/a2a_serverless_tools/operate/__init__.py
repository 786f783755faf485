"""What an operator sees: rows and their words, which the terminal and the pages draw."""
