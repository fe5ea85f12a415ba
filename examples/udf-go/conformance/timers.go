package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

// timers sets timers, as the function of this name in remembering_functions.py.
func timers(concurrency int) *udf.Function {
	count, timers := udf.NewCounterState("count"), udf.NewTimers()
	set := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		_, err := count.Add(ctx, 1)
		err = errors.Join(err, timers.Set(ctx, "event", record.EventTime.Add(5*time.Microsecond)),
			timers.SetByProcessingTime(ctx, "clock", time.UnixMicro(7)), timers.Cancel(ctx, "other"))
		if string(record.Value) == "fail" {
			return nil, errors.New("away")
		}
		return nil, err
	}
	fire := func(ctx context.Context, timer udf.Timer) ([]udf.Message, error) {
		counted, err := count.Add(ctx, 10)
		clock := "event"
		if timer.ByProcessingTime {
			clock = "processing"
		}
		switch timer.Name {
		case "fail":
			return nil, errors.New("away")
		case "again":
			err = errors.Join(err, timers.Set(ctx, "again", timer.EventTime.Add(time.Microsecond)))
		}
		return []udf.Message{{Value: fmt.Appendf(nil, "%s %s %d %d ('%s',) %d", timer.Name, clock, timer.At.UnixMicro(),
			timer.EventTime.UnixMicro(), strings.Join(timer.Keys, "', '"), counted)}}, err
	}
	return udf.NewMap(set, udf.States(count, timers), udf.OnTimer(fire), udf.Concurrency(concurrency))
}

// reminding sets a timer for each order of a user, and one for when there are no more, as the function Reminding of
// tests/mesh/test_timers.py.
func reminding() *udf.Function {
	orders, timers := udf.NewCounterState("orders"), udf.NewTimers()
	order := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		row, err := udf.FromJSON[numbered](record.Value)
		if err != nil {
			return nil, err
		}
		_, err = orders.Add(ctx, 1)
		err = errors.Join(err,
			timers.Set(ctx, fmt.Sprint("order ", row.Number), record.EventTime.Add(20*time.Second)),
			timers.Set(ctx, "idle", record.EventTime.Add(24*time.Hour)))
		if row.Number%9 == 0 {
			err = errors.Join(err, timers.SetByProcessingTime(ctx, "clock", time.UnixMicro(1)))
		}
		return nil, err
	}
	remind := func(ctx context.Context, timer udf.Timer) ([]udf.Message, error) {
		count, err := orders.Add(ctx, 1)
		return []udf.Message{{Value: fmt.Appendf(nil, `{"user":%q,"timer":%q,"at":%d,"orders":%d}`, timer.Keys[0],
			timer.Name, timer.At.Unix(), count)}}, err
	}
	return udf.NewMap(order, udf.States(orders, timers), udf.OnTimer(remind))
}
