"""A project deployed by SAM on an emulated AWS, without an account."""
