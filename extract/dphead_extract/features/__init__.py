"""Write, read and verify features files."""
