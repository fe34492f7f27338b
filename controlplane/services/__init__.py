"""What the admin API and the console can ask for and do. No HTTP, no tables."""
