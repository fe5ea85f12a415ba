def process(value: bytes) -> bytes:
    return value.upper()
