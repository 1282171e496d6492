"""What a server must stand: hostile inputs, and many ordinary visitors for a long time."""
