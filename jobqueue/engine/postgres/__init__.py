"""What PostgreSQL does in another way than the portable engine, under the same file names."""
