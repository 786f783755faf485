"""What makes the site out of the pages, and checks them: `python -m website`."""
