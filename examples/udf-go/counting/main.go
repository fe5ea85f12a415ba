// The reduce function of benchmarks/reduce_udf.py in Go: how many records a group has.
package main

import (
	"context"
	"iter"
	"strconv"

	"github.com/millstream/millstream/sdk/go/udf"
)

func count(_ context.Context, _ udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
	n := 0
	for range records {
		n++
	}
	return []udf.Message{{Value: strconv.AppendInt(nil, int64(n), 10)}}, nil
}

func main() { udf.Main(udf.NewReduce(count)) }
