"""External object stores (S3, Google Cloud Storage, Azure): how they are named and reached."""
