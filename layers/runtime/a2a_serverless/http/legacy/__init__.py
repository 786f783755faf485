"""Clients of A2A 0.3 and before, in a folder that can be removed when there are none left.

The rest of `http/` uses it in two places: `app` adds the dialects' routes, and `guard` the checks
of 0.3.
"""
