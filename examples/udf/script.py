import millstream_udf as udf


def process(value: bytes) -> bytes:
    return value[::-1]


if __name__ == "__main__":
    udf.serve(process)
