"""Push notifications: what is committed is delivered, signed, in order, to public receivers."""
