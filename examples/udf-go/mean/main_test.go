package main

import (
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func TestMean(t *testing.T) {
	minute := udf.Group{Start: time.Unix(0, 0), End: time.Unix(60, 0), Keys: []string{"a"}}
	reduced := udftest.Reduce(t, udf.NewReduce(mean),
		udftest.Input{Group: minute, Records: udftest.Values("1", "2", "6")},
		udftest.Input{Group: minute, Records: udftest.Values("1", "many")},
	)
	if got := reduced[0].Values()[0]; got != `{"n": 3, "mean": 3}` {
		t.Error(got)
	}
	if got := reduced[1].Failed; got != `record 1: strconv.ParseFloat: parsing "many": invalid syntax` {
		t.Error(got)
	}
}
