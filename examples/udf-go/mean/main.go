// A Millstream reduce function in Go: the number and the mean of the numbers in a window, and of a key where there is one.
package main

import (
	"fmt"
	"iter"
	"log"
	"strconv"

	"millstream.io/examples/udf-go/udf"
)

func mean(group udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
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

func main() {
	if err := udf.ServeReduce(mean); err != nil {
		log.Fatal(err)
	}
}
