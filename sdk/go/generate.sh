#!/bin/sh
# Generates internal/wire from proto/. Needs protoc (the one in grpcio-tools will do) and protoc-gen-go, protoc-gen-go-grpc
# on the PATH, in the versions that the generated files name.
set -eu
cd "$(dirname "$0")"
PROTOC=${PROTOC:-"../../.venv/bin/python -m grpc_tools.protoc"}
MODULE=$(sed -n 's/^module //p' go.mod)
FRAME=Mmillstream/frame/v1/frame.proto=$MODULE/internal/wire/framev1
UDF=Mmillstream/udf/v1/udf.proto=$MODULE/internal/wire/udfv1
$PROTOC -I ../../proto \
  --go_out=. --go_opt=module=$MODULE,$FRAME,$UDF \
  --go-grpc_out=. --go-grpc_opt=module=$MODULE,$FRAME,$UDF \
  millstream/frame/v1/frame.proto millstream/udf/v1/udf.proto
