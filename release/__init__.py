"""What is checked before a release, and what is made for it: `make release-check`."""
