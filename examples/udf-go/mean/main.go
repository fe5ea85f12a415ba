// A Millstream reduce function in Go: the number and the mean of the numbers in a window, and of a key where there is one.
package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/millstream/millstream/sdk/go/udf"
)

func mean(_ context.Context, _ udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
	n, sum := 0, 0.0
	for record := range records {
		number, err := strconv.ParseFloat(string(record.Value), 64)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", n, err)
		}
		n++
		sum += number
	}
	return []udf.Message{{Value: fmt.Appendf(nil, `{"n": %d, "mean": %g}`, n, sum/float64(n))}}, nil
}

func main() { udf.Main(udf.NewReduce(mean)) }
