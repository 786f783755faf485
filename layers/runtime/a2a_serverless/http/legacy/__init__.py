"""Clients of A2A 0.3 and before, in a folder that can be removed when there are none left.

The rest of `http/` uses it where a request is of 0.3: `jsonrpc` and `rest` read and show its forms,
and `app` adds the dialects and the form of errors.
"""
