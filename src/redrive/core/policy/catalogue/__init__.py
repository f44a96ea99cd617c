"""Failures the world knows by name or number, as data: each row says what it is and where that is laid down."""
