"""Signals that a task should be canceled."""
