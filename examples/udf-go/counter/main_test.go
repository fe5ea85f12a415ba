package main

import (
	"testing"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func TestCounterGoesOnBehindItsPosition(t *testing.T) {
	source := udf.NewSource(func() udf.Source { return &counter{} })
	first := udftest.Read(t, source, udf.SourceStart{Partition: 1, Partitions: 2}, 1, 100)
	rest := udftest.Read(t, source, udf.SourceStart{Position: first[0].Position, Partition: 1, Partitions: 2}, 100, 100)
	records := first[0].Records
	for _, batch := range rest {
		records = append(records, batch.Records...)
	}
	if len(records) != 500 || string(records[100].Value) != "201" || !rest[len(rest)-1].Ended {
		t.Errorf("%d records, %s", len(records), records[100].Value)
	}
}
