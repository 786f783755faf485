"""Clients of A2A 0.3 and before, in a folder that may go with the last of them.

The rest of `http/` names it in two places: `app` adds the dialects' routes, and `guard` the checks
of 0.3.
"""
