package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/millstream/millstream/sdk/go/udf"
)

// remember counts the records of a key. The value says what else becomes of the record.
func remember() *udf.Function {
	total := udf.NewValueState[int]("total")
	seen := udf.NewMapState[string, string]("seen", udf.TTL(time.Second))
	last := udf.NewListState[[]byte]("last", udf.MaxItems(2))
	clicks := udf.NewCounterState("clicks")
	mapping := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		count, reading := total.Get(ctx)
		err := errors.Join(reading, total.Set(ctx, count+1), seen.Set(ctx, string(record.Value), "yes"),
			last.Append(ctx, record.Value))
		clicked, adding := clicks.Add(ctx, 2)
		switch string(record.Value) {
		case "fail":
			return nil, errors.New("away")
		case "forget":
			err = errors.Join(err, total.Delete(ctx))
			count = -1
		}
		return []udf.Message{{Value: fmt.Appendf(nil, "%d %d", count+1, clicked)}}, errors.Join(err, adding)
	}
	return udf.NewMap(mapping, udf.States(total, seen, last, clicks))
}

// rememberConcurrently is as remember, for the value only.
func rememberConcurrently() *udf.Function {
	total := udf.NewValueState[int]("total")
	mapping := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		count, err := total.Get(ctx)
		time.Sleep(time.Microsecond)
		return []udf.Message{{Value: fmt.Append(nil, count+1)}}, errors.Join(err, total.Set(ctx, count+1))
	}
	return udf.NewMap(mapping, udf.States(total), udf.Concurrency(16))
}

type numbered struct {
	User   string `json:"user"`
	Number int    `json:"number"`
	Total  int    `json:"total"`
}

// totals adds up the numbers of a user, as the functions of tests/mesh/test_states.py. If it is picky, some records fail
// after that.
func totals(picky bool) *udf.Function {
	total := udf.NewValueState[int]("total")
	mapping := func(ctx context.Context, record udf.Record) ([]udf.Message, error) {
		row, err := udf.FromJSON[numbered](record.Value)
		if err != nil {
			return nil, err
		}
		before, err := total.Get(ctx)
		if err != nil {
			return nil, err
		}
		row.Total = before + row.Number
		if err := total.Set(ctx, row.Total); err != nil {
			return nil, err
		}
		switch {
		case picky && row.Number%7 == 3:
			return nil, udf.DeadLetter{Reason: "it ends in nothing"}
		case picky && row.Number%7 == 5:
			panic("it fails each time")
		}
		value, err := json.Marshal(row)
		return []udf.Message{{Value: value}}, err
	}
	return udf.NewMap(mapping, udf.States(total))
}
