"""Delivery of operations from the API to workers."""
