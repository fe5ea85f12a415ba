// The reduce function of benchmarks/reduce_udf.py in Go: how many records a group has.
package main

import (
	"iter"
	"log"
	"strconv"

	"millstream.io/examples/udf-go/udf"
)

func count(group udf.Group, records iter.Seq[udf.Record]) ([]udf.Message, error) {
	n := 0
	for range records {
		n++
	}
	return []udf.Message{{Value: strconv.AppendInt(nil, int64(n), 10)}}, nil
}

func main() {
	if err := udf.ServeReduce(count); err != nil {
		log.Fatal(err)
	}
}
