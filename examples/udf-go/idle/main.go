// A Millstream map in Go that acts when a time has come: how many pages a user has seen, once there are no more for half
// an hour. examples/udf/idle.py is the same in Python.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

type session struct {
	User  string    `json:"user"`
	Pages int64     `json:"pages"`
	Until time.Time `json:"until"`
}

var (
	pages  = udf.NewCounterState("pages")
	timers = udf.NewTimers()
)

func visit(ctx context.Context, record udf.Record) ([]udf.Message, error) {
	if _, err := pages.Add(ctx, 1); err != nil {
		return nil, err
	}
	if string(record.Value) == "logout" {
		return nil, timers.Cancel(ctx, "idle")
	}
	// The same name: each record moves the timer of its key.
	return nil, timers.Set(ctx, "idle", record.EventTime.Add(30*time.Minute))
}

func leave(ctx context.Context, timer udf.Timer) ([]udf.Message, error) {
	seen, err := pages.Get(ctx)
	if err := errors.Join(err, pages.Delete(ctx)); err != nil {
		return nil, err
	}
	value, err := json.Marshal(session{User: timer.Keys[0], Pages: seen, Until: timer.At})
	return []udf.Message{{Value: value}}, err
}

func main() { udf.Main(udf.NewMap(visit, udf.States(pages, timers), udf.OnTimer(leave))) }
