// A Millstream source in Go: counts to 1,000, shared out to its lanes.
package main

import (
	"context"
	"strconv"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

type counter struct{ next, step int }

func (c *counter) Open(_ context.Context, start udf.SourceStart) (err error) {
	c.next, c.step = start.Partition, start.Partitions
	if len(start.Position) > 0 {
		// Positions are ours to write and read.
		c.next, err = strconv.Atoi(string(start.Position))
	}
	return err
}

func (c *counter) Read(_ context.Context, recordsMax int) (udf.Batch, error) {
	var batch udf.Batch
	for ; c.next < 1000 && len(batch.Records) < recordsMax; c.next += c.step {
		value := strconv.AppendInt(nil, int64(c.next), 10)
		batch.Records = append(batch.Records, udf.Record{Value: value, EventTime: time.Unix(int64(c.next), 0)})
	}
	batch.Position = strconv.AppendInt(nil, int64(c.next), 10)
	batch.Ended = c.next >= 1000
	return batch, nil
}

// Committed is the place to acknowledge to the outside.
func (c *counter) Committed(context.Context, []byte) error { return nil }

func (c *counter) Close() error { return nil }

func main() { udf.Main(udf.NewSource(func() udf.Source { return &counter{} })) }
