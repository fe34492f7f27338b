"""What people decided, kept in a database behind a port (STO-01, STO-03)."""
