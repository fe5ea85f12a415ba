// The map of benchmarks/udf_go.py: hands each value on.
package main

import (
	"context"

	"github.com/millstream/millstream/sdk/go/udf"
)

func identity(_ context.Context, record udf.Record) ([]udf.Message, error) {
	return []udf.Message{{Value: record.Value}}, nil
}

func main() { udf.Main(udf.NewMap(identity)) }
