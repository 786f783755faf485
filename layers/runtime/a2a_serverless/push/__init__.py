"""Push notifications: committed events, delivered in order and signed to public receivers."""
