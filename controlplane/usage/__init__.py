"""What clients used, from routers' batches to the store (TEN-06, STO-03)."""
