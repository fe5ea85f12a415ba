package main

import (
	"slices"
	"testing"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
	"github.com/millstream/millstream/sdk/go/udftest"
)

func TestASessionEndsHalfAnHourAfterItsLastPage(t *testing.T) {
	states := udftest.NewStates(t, udf.NewMap(visit, udf.States(pages, timers), udf.OnTimer(leave)))
	noon := time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, 20 * time.Minute} {
		states.Map(udf.Record{Value: []byte("/"), Keys: []string{"ada"}, EventTime: noon.Add(after)})
	}
	states.Watermark = noon.Add(49 * time.Minute)
	if early := states.FireTimers().Values(); len(early) > 0 {
		t.Error(early)
	}
	states.Watermark = noon.Add(time.Hour)
	expected := []string{`{"user":"ada","pages":2,"until":"2026-01-05T12:50:00Z"}`}
	if got := states.FireTimers().Values(); !slices.Equal(got, expected) {
		t.Error(got)
	}
}

func TestWhoLogsOutIsNotIdle(t *testing.T) {
	states := udftest.NewStates(t, udf.NewMap(visit, udf.States(pages, timers), udf.OnTimer(leave)))
	for _, page := range []string{"/", "logout"} {
		states.Map(udf.Record{Value: []byte(page), Keys: []string{"ada"}})
	}
	if set := states.Timers(); len(set) > 0 {
		t.Error(set)
	}
}
