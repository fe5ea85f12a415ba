"""Object stores (S3, Google Cloud Storage, Azure) as something outside: how they are named and reached."""
